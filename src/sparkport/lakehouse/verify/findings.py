"""What is wrong with a lakehouse, in words that name the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sparkport.errors import NotFound, SparkportError

__all__ = ["Finding", "Findings", "Wrong"]


class Wrong(Exception):
    """What is said of a file does not hold: in words that follow its name. Never leaves the check."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """``where`` is a table or a part of the catalog; ``kind`` what is wrong there, and ``path`` its file, if any."""

    where: str
    kind: str
    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}{' ' if self.path else ''}{self.path}: {self.problem}"


@dataclass(slots=True)
class Findings:
    """Those of one table, and how many files were looked at."""

    where: str
    found: list[Finding] = field(default_factory=list)
    files: int = 0

    def add(self, kind: str, path: str, problem: str) -> None:
        self.found.append(Finding(self.where, kind, path, " ".join(problem.split())))

    @contextmanager
    def catching(self, kind: str, path: str) -> Iterator[None]:
        """What cannot be read is a finding, and what depends on it is left out."""
        try:
            yield
        except NotFound:
            self.add(kind, path, "is missing")
        except Wrong as exc:
            self.add(kind, path, str(exc))
        except SparkportError as exc:
            self.add(kind, path, exc.message.replace(f" '{path}'", ""))
        except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, IndexError) as exc:
            self.add(kind, path, f"cannot be read: {exc}")
