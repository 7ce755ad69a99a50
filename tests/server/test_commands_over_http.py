"""The commands through a server: tests of the commands, run again with `FLOWFABRIC_URL`.

Answers, exit codes and errors are the same, so the same tests hold. What differs stands in
test_remote_commands.py.
"""

from __future__ import annotations

import pytest

from cli.test_acting_commands import (  # noqa: F401
    test_cancel_by_filter_leaves_ended_ones_alone,
    test_some_refused_do_not_keep_the_others,
)
from cli.test_flow_commands import (  # noqa: F401
    broken,
    flow,
    test_a_flow_is_shown_whole,
    test_what_failed_runs_again_with_what_was_skipped_for_it,
)
from cli.test_lane_and_worker_commands import test_a_pause_ends_by_itself  # noqa: F401
from cli.test_looking_commands import (  # noqa: F401
    test_attempts_are_listed_first_to_latest,
    test_ls_goes_on_page_by_page_to_the_limit_or_the_end,
    test_show_lists_the_children_and_the_key,
    test_why_tells_what_it_waits_for,
)
from cli.test_signal_commands import (  # noqa: F401
    test_resume_wakes_suspended_executions,
    test_suspended_executions_are_listed_shown_and_explained,
)
from server.remote import ff, world  # noqa: F401

pytestmark = pytest.mark.slow(short=3, of="commands over HTTP")
