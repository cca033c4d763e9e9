"""The keys on disk: whole, sealed, and not believed when anything about them is wrong."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.snapshot import SNAPSHOT, Snapshot, SnapshotFile
from gateway.store import KeyRecord
from tests.fakes.inprocess import configuration

SECRET = b"derived from the pepper"
BARE = KeyRecord("aaaaaaaaaa", "laptop", "acme", b"\x00\xff" * 16, "pepper", 1.5, 2.5)
FULL = KeyRecord(
    id="bbbbbbbbbb",
    name="Büro",
    tenant="größer",
    digest=b"d" * 32,
    pepper_id="pepper",
    created_at=1.0,
    changed_at=2.0,
    previous_digest=b"p" * 32,
    previous_pepper_id="old",
    previous_until=3.0,
    plan="gold",
    scopes=("embed",),
    models=("a", "b"),
    overrides={"requests_per_minute": 7, "over_cap": "refuse"},
    expires_at=4.0,
    disabled_at=5.0,
    revoked_at=6.0,
    last_used_at=7.0,
)
TAKEN = Snapshot(1_800_000_000.25, [BARE, FULL])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / SNAPSHOT


@pytest.fixture
def file(path: Path) -> SnapshotFile:
    return SnapshotFile(path, SECRET)


def test_what_was_saved_is_loaded_to_the_last_field(file: SnapshotFile) -> None:
    file.save(TAKEN)
    assert file.load() == TAKEN


def test_a_snapshot_takes_the_place_of_the_one_before_and_leaves_nothing_else(
    file: SnapshotFile, path: Path
) -> None:
    file.save(TAKEN)
    file.save(replace(TAKEN, records=[BARE]))
    assert file.load() == replace(TAKEN, records=[BARE])
    assert [entry.name for entry in path.parent.iterdir()] == [SNAPSHOT]


def test_nobody_else_may_read_it(file: SnapshotFile, path: Path) -> None:
    file.save(TAKEN)
    assert path.stat().st_mode & 0o077 == 0


def test_where_there_is_none_none_is_loaded(file: SnapshotFile) -> None:
    assert file.load() is None


def test_what_a_writer_left_half_done_is_neither_loaded_nor_in_the_way(
    file: SnapshotFile, path: Path
) -> None:
    path.with_name(SNAPSHOT + ".part").write_bytes(b"half")
    assert file.load() is None
    file.save(TAKEN)
    assert file.load() == TAKEN


def test_one_made_with_another_pepper_is_not_believed(file: SnapshotFile, path: Path) -> None:
    file.save(TAKEN)
    assert SnapshotFile(path, b"another").load() is None


def test_one_whose_keys_were_changed_is_not_believed(file: SnapshotFile, path: Path) -> None:
    file.save(TAKEN)
    seal, _, body = path.read_bytes().partition(b"\n")
    assert b'"acme"' in body
    path.write_bytes(seal + b"\n" + body.replace(b'"acme"', b'"evil"'))
    assert file.load() is None


def test_one_whose_time_was_changed_is_not_believed(file: SnapshotFile, path: Path) -> None:
    file.save(TAKEN)
    held = path.read_bytes()
    later = held.replace(b"1800000000.25", b"1900000000.25")
    assert later != held
    path.write_bytes(later)
    assert file.load() is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_single_damage_is_overlooked(file: SnapshotFile, path: Path, data: st.DataObject) -> None:
    file.save(TAKEN)
    held = path.read_bytes()
    place = data.draw(st.integers(0, len(held) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != held[place]))
    path.write_bytes(held[:place] + bytes([byte]) + held[place + 1 :])
    assert file.load() is None
    path.write_bytes(held[:place])
    assert file.load() is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_no_bytes_are_taken_for_a_snapshot(file: SnapshotFile, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert file.load() is None


def test_one_of_another_version_is_not_read(file: SnapshotFile, path: Path) -> None:
    body = b'{"version":2,"keys":"in another form"}'
    path.write_bytes(file._mac(body) + b"\n" + body)
    assert file.load() is None


def test_one_that_cannot_be_read_is_none(file: SnapshotFile, path: Path) -> None:
    path.mkdir()
    assert file.load() is None


def test_one_that_cannot_be_written_leaves_the_one_before(file: SnapshotFile, path: Path) -> None:
    file.save(TAKEN)
    part = path.with_name(SNAPSHOT + ".part")
    part.mkdir()
    with pytest.raises(OSError, match="directory"):
        file.save(replace(TAKEN, records=[]))
    assert file.load() == TAKEN


def test_writers_that_share_a_directory_do_not_spoil_each_others_file(path: Path) -> None:
    problems: list[OSError] = []

    def write(count: int) -> None:
        records = [replace(BARE, id=f"{number:010d}") for number in range(count)]
        try:
            for _ in range(20):
                SnapshotFile(path, SECRET).save(Snapshot(float(count), records))
        except OSError as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(count,)) for count in (1, 50, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = SnapshotFile(path, SECRET).load()
    assert problems == []
    assert found is not None
    assert len(found.records) == found.taken_at


def test_the_gateways_own_is_in_its_data_directory_and_sealed_by_its_pepper(tmp_path: Path) -> None:
    here = configuration(GATEWAY_DATA_DIR=str(tmp_path))
    SnapshotFile.of(here).save(TAKEN)
    assert SnapshotFile.of(here).load() == TAKEN
    assert (tmp_path / SNAPSHOT).exists()
    other = replace(here, secrets=replace(here.secrets, key_pepper=b"another pepper"))
    assert SnapshotFile.of(other).load() is None
