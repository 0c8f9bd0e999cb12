"""One test over many cases of one law, each of which takes milliseconds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def each(names: str | tuple[str, ...], cases: Iterable[Any] | Callable[[], Iterable[Any]]) -> Any:
    """``pytest.mark.parametrize`` within one test: every case runs, and an ExceptionGroup holds those that fail.

    ``cases`` may be a function, for what is worth computing only when the test runs. Fixtures are shared by all cases.
    """
    listed = (names,) if isinstance(names, str) else names

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @wraps(check)
        def test(**fixtures: Any) -> None:
            failed, count = [], 0
            for count, case in enumerate(cases() if callable(cases) else cases, start=1):
                values = (case,) if isinstance(names, str) else case
                try:
                    check(**dict(zip(listed, values, strict=True)), **fixtures)
                except Exception as error:
                    error.add_note(f"case {count}: {', '.join(f'{value!s:.300}' for value in values)}")
                    failed.append(error)
            assert count, "no cases"
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {count} cases fail", failed)

        signature = inspect.signature(check)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in listed]
        test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return test

    return decorate
