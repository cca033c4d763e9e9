"""`gatehouse-model.json`: what stands in a model directory and where it came from."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.fetch.listing import MANIFEST_NAME, RemoteFile
from ops.fetch.verify import Mismatch, check_file


@dataclass(frozen=True, slots=True)
class Origin:
    """What was asked for. `revision` is a branch, a tag or a commit; for a local directory it is empty."""

    source: str
    repo: str
    revision: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was published. `commit` is None where the source names none; `digest` identifies the content.

    `created` is ISO 8601 in UTC.
    """

    origin: Origin
    commit: str | None
    digest: str
    files: tuple[RemoteFile, ...]
    created: str

    def write(self, directory: Path) -> None:
        body = {
            **asdict(self.origin),
            "commit": self.commit,
            "digest": self.digest,
            "created": self.created,
            "files": [asdict(f) for f in self.files],
        }
        (directory / MANIFEST_NAME).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> "Manifest | None":
        """The manifest of a model directory; None where there is none that can be read."""
        try:
            return cls.parse((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            return None

    @classmethod
    def parse(cls, text: str) -> "Manifest | None":
        """The manifest in `text`; None where it is none."""
        try:
            body = json.loads(text)
            return cls(
                Origin(body["source"], body["repo"], body["revision"]),
                body["commit"],
                body["digest"],
                tuple(RemoteFile(**f) for f in body["files"]),
                body["created"],
            )
        except (ValueError, KeyError, TypeError):
            return None

    def is_of(self, origin: Origin) -> bool:
        """Whether this is what `origin` asks for. The commit is as good as the branch."""
        asked = (origin.source, origin.repo)
        return (self.origin.source, self.origin.repo) == asked and origin.revision in {
            self.origin.revision,
            self.commit,
        }

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)

    def problems(self, directory: Path, *, hashes: bool) -> list[str]:
        """What in `directory` is not as published: sizes only (instant) or bytes with `hashes`."""
        found = []
        for file in self.files:
            path = directory / file.path
            try:
                if hashes:
                    check_file(path, file)
                elif path.stat().st_size != file.size:
                    found.append(f"{file.path} has {path.stat().st_size} bytes, not {file.size}")
            except OSError as error:
                found.append(f"{file.path}: {error.strerror}")
            except Mismatch as mismatch:
                found.append(str(mismatch))
        return found
