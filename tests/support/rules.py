"""The rules of ff.execution by name.

The doctor's invariant S12 lists the rules, and the table enforces them in three CHECKs. The test
databases also have a CHECK for each rule.
"""

from __future__ import annotations

import re

from flowfabric.doctor import find_check

_RULE = re.compile(r"^  \('(\w+)',\s*(.*?)\),?$(?=\n(?:  \('|\) r))", re.DOTALL | re.MULTILINE)


def rules() -> dict[str, str]:
    """Return the expression of each rule, over the columns of ff.execution."""
    check = find_check("S12")
    assert check is not None
    return {name: re.sub(r"\be\.", "", text) for name, text in _RULE.findall(check.text)}


def named_checks() -> str:
    """Return the statement that adds a CHECK for each rule."""
    added = (f"add constraint {name} check ({rule})" for name, rule in rules().items())
    return f"alter table ff.execution {', '.join(added)}"
