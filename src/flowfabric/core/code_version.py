"""Code versions: which version of an app's code records the steps of an execution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from flowfabric.core.errors import InvalidInput

MAX_VERSION_BYTES = 64
MAX_READS = 100
DEFAULT_GRACE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """The version of a worker's code, and the other versions (`reads`) whose journals this code
    can continue.

    `grace` is how long another version must have had no worker before this worker takes over the
    executions of that version.
    """

    name: str | None = None
    reads: frozenset[str] = frozenset()
    grace: timedelta = DEFAULT_GRACE

    @classmethod
    def checked(
        cls, name: str | None, reads: Iterable[str] = (), grace: timedelta = DEFAULT_GRACE
    ) -> CodeVersion:
        """Return the code version. If a field is invalid, raise InvalidInput with its name."""
        check_code_version("code_version", name)
        if isinstance(reads, str):
            raise InvalidInput(field="reads", problem='must be a set of versions, as {"1"}')
        readable = frozenset(reads)
        for one in readable:
            if one is None:
                raise InvalidInput(field="reads", problem="must not contain None")
            check_code_version("reads", one)
        if readable and name is None:
            raise InvalidInput(field="reads", problem="needs a code_version of the app itself")
        if len(readable) > MAX_READS:
            raise InvalidInput(field="reads", problem=f"must be at most {MAX_READS} versions")
        return cls(name, readable - {name}, grace)

    @property
    def served(self) -> list[str] | None:
        """The versions whose executions this code can claim without waiting for the grace; None if
        the code has no version."""
        return None if self.name is None else [self.name, *sorted(self.reads)]


NO_VERSION = CodeVersion()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo:
    """One code version of one task: its unfinished executions and its live workers."""

    namespace: str
    task: str
    code_version: str
    # Exact up to 10 000; 10 001 means more.
    in_flight: int
    # How many live workers of this version know the task, and how many of them begin new
    # executions.
    workers: int
    beginners: int
    # Versions of other live workers that know the task and can read the journals of this version.
    readers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAnswer:
    """Whether the workers of one code version can be switched off without leaving executions
    behind."""

    namespace: str
    code_version: str
    may_stop: bool
    sentence: str


def answer_versions(versions: Iterable[VersionInfo]) -> list[VersionAnswer]:
    """Decide for each code version of each namespace whether its workers can be switched off."""
    groups: dict[tuple[str, str], list[VersionInfo]] = {}
    for one in versions:
        groups.setdefault((one.namespace, one.code_version), []).append(one)
    answers = []
    for (namespace, version), several in sorted(groups.items()):
        may_stop, why = _answer(several)
        answers.append(
            VersionAnswer(
                namespace=namespace,
                code_version=version,
                may_stop=may_stop,
                sentence=f"Version {version} {why}",
            )
        )
    return answers


def _answer(versions: Sequence[VersionInfo]) -> tuple[bool, str]:
    number = sum(one.in_flight for one in versions)
    in_flight = f"{'none of its executions is' if number == 0 else _count(number)} in flight"
    unread = [one for one in versions if not one.readers]
    if not any(one.in_flight or one.beginners for one in unread):
        readers = ", ".join(sorted({name for one in versions for name in one.readers}))
        if number == 0 or not readers:
            return True, f"may be switched off: {in_flight}."
        return True, f"may be switched off: workers of version {readers} continue its executions."
    if any(one.beginners for one in versions):
        return False, (
            f"is in use: {in_flight}, and its workers begin new executions. Before you switch it "
            "off, run it with --finish-only."
        )
    if any(one.workers for one in versions):
        return False, f"must keep running: {in_flight}."
    return False, (
        f"has no worker, and {in_flight}. Run it with --finish-only. Otherwise, "
        "after the grace, other workers take over its executions, and hold each one that does not "
        "fit their code."
    )


def _count(number: int) -> str:
    return "1 execution is" if number == 1 else f"{number} executions are"


def check_code_version(field: str, version: str | None) -> None:
    """Refuse a code version that is too long or contains whitespace; accept None."""
    if version is None:
        return
    if not isinstance(version, str):
        raise InvalidInput(field=field, problem=f"must be text, not {type(version).__name__}")
    if (
        not version
        or len(version.encode("utf-8", "surrogatepass")) > MAX_VERSION_BYTES
        or any(character <= " " or character == "\x7f" for character in version)
    ):
        raise InvalidInput(
            field=field,
            problem=f"must be 1 to {MAX_VERSION_BYTES} bytes without whitespace or control "
            "characters",
        )
