"""A spool holds whole lines, belongs to one process, and goes to the next one when that dies."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.spool import Spool


@contextmanager
def full_disk(free: int) -> Iterator[None]:
    """No file of this process may grow beyond `free` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def whole(spool: Spool) -> bytes:
    return spool.read(0, 1_000_000)


def test_what_is_appended_is_read_back_line_by_line(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path)
    assert whole(spool) == b""
    for line in (b"one\n", b"two\n", b"three\n"):
        spool.append(line)
    assert whole(spool) == b"one\ntwo\nthree\n"
    assert spool.read(4, 1000) == b"two\nthree\n"
    assert spool.read(0, 10) == b"one\ntwo\n"
    assert spool.read(spool.size, 10) == spool.read(spool.size + 5, 10) == b""
    assert spool.path.stat().st_mode & 0o777 == 0o600
    spool.close()


def test_a_living_processs_spool_is_left_to_it(tmp_path: Path) -> None:
    mine, other = Spool.create(tmp_path), Spool.create(tmp_path)
    assert mine.name != other.name
    assert Spool.left_behind(tmp_path) == []
    other.append(b"one\n")
    other.close()
    [found] = Spool.left_behind(tmp_path)
    assert (found.name, found.size, whole(found)) == (other.name, 4, b"one\n")
    assert Spool.left_behind(tmp_path) == []
    found.close()
    mine.close()


def test_a_spool_that_its_owner_deletes_in_between_is_not_taken(tmp_path: Path) -> None:
    """Its lines are counted and its mark forgotten: whoever took it would count them again."""
    owner = Spool.create(tmp_path)
    owner.append(b"one\n")
    opened = os.open(owner.path, os.O_RDWR)
    owner.delete()
    assert Spool._lock(owner.path, opened) is None
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_none_of_its_business(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x\n")
    assert Spool.left_behind(tmp_path) == []
    assert (tmp_path / "notes.txt").read_text() == "x\n"


def test_a_line_that_does_not_fit_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path)
    spool.append(b"first\n")
    with full_disk(10):
        for _ in range(3):
            with pytest.raises(OSError, match=r"No space left|File too large"):
                spool.append(b"too long for the disk\n")
            assert whole(spool) == b"first\n"
        spool.append(b"a\n")
        assert whole(spool) == b"first\na\n"
    spool.append(b"last\n")
    assert spool.path.read_bytes() == whole(spool) == b"first\na\nlast\n"
    spool.close()


def test_a_torn_last_line_is_no_line(tmp_path: Path) -> None:
    (tmp_path / "usage-x.jsonl").write_bytes(b"one\ntw")
    [spool] = Spool.left_behind(tmp_path)
    assert whole(spool) == b"one\n"
    assert spool.read(4, 1000) == b""
    spool.close()


def test_garbage_without_an_end_does_not_hold_up_what_follows(tmp_path: Path) -> None:
    (tmp_path / "usage-x.jsonl").write_bytes(b"\0" * 25 + b"\none\n")
    [spool] = Spool.left_behind(tmp_path)
    assert [spool.read(offset, 10) for offset in (0, 10, 20)] == [b"\0" * 10] * 2 + [b"\0" * 5 + b"\none\n"]
    spool.close()


def test_what_was_synced_is_on_the_disk(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path)
    spool.append(b"one\n")
    spool.sync()
    assert spool.path.read_bytes() == b"one\n"
    spool.close()


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Spool.create(tmp_path / "nowhere")
