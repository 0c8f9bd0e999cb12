"""Files of records that are packed with gzip."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from perfmodel.core.errors import DataError
from perfmodel.validation import records
from perfmodel.validation.records import name_of, read_records, shipped_records

LINES = (Path(__file__).parent / "data" / "records.jsonl").read_bytes().splitlines(keepends=True)
SOFTWARE = json.dumps({"software": {"torch": "9.9"}, "files": "made, made-later: by hand"})


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "made.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(LINES), mtime=0))
    return path


def test_packed_records_are_the_same(packed: Path) -> None:
    """With the software that the file beside them says they were made with."""
    plain = packed.with_suffix("")
    plain.write_bytes(b"".join(LINES))
    (packed.parent / "made-environment.json").write_text(SOFTWARE)
    found = list(read_records(packed))
    assert found == list(read_records(plain))
    assert len(found) == len(LINES)
    assert all(record.environment["torch"] for _, record in found)
    assert {"9.9"} <= {record.environment["torch"] for _, record in found}


def test_a_wrong_line_of_a_packed_file_has_its_number(packed: Path) -> None:
    packed.write_bytes(gzip.compress(LINES[0] + b"\n" + b"[1]\n"))
    with pytest.raises(DataError, match=r"made\.jsonl\.gz, line 3: not a JSON object"):
        list(read_records(packed))
    packed.write_bytes(gzip.compress(LINES[0] + b"1" * (records.MAX_LINE_BYTES + 1)))
    with pytest.raises(DataError, match=r"made\.jsonl\.gz, line 2: longer than"):
        list(read_records(packed))


@pytest.mark.parametrize("command", ["validate --records", "calibrate --from-records"])
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda whole: whole[: len(whole) // 2], id="cut"),
        pytest.param(lambda whole: whole[:5], id="cut in its head"),
        pytest.param(lambda whole: b"".join(LINES), id="not packed"),
        pytest.param(lambda whole: whole[:-8] + bytes(4) + whole[-4:], id="checksum"),
        pytest.param(lambda whole: whole + b"more", id="more at the end"),
        pytest.param(lambda whole: whole[:10] + b"\xff" * 40 + whole[50:], id="overwritten"),
    ],
)
def test_a_damaged_file_gives_one_message(run, packed: Path, spoil, command: str) -> None:
    packed.write_bytes(spoil(packed.read_bytes()))
    outcome = run(f"{command} {packed}")
    assert outcome.code == 1, outcome
    assert f"{packed}: damaged, or not packed with gzip: " in outcome.err
    assert "pack it again" in outcome.err
    assert "Traceback" not in outcome.err


def test_whatever_byte_is_wrong_nothing_else_is_read(packed: Path) -> None:
    """The checksum finds what still unpacks; bytes of the head, of time and name, change nothing."""
    whole, expected, draw = packed.read_bytes(), list(read_records(packed)), random.Random(1)
    said = []
    for _ in range(60):
        spoilt = bytearray(whole)
        spoilt[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        packed.write_bytes(spoilt)
        try:
            assert list(read_records(packed)) == expected
        except DataError as error:
            said.append(error.message)
    assert len(said) > 50
    assert all(message.startswith(str(packed)) for message in said)


def test_shipped_files_may_be_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go by the same name, and are among the records of ``shipped``."""
    folder = tmp_path / "measured" / "nvidia-l40s"
    folder.mkdir(parents=True)
    (folder / "public-tables.jsonl.gz").write_bytes(gzip.compress(b"".join(LINES)))
    monkeypatch.setattr(records, "__file__", str(tmp_path / "records.py"))
    [path] = shipped_records()
    assert [path] == shipped_records("public-tables", "other")
    assert shipped_records("other") == []
    assert len(list(read_records(path))) == len(LINES)


def test_no_shipped_file_is_there_twice() -> None:
    known = Counter((path.parent.name, name_of(path)) for path in shipped_records())
    assert set(known.values()) == {1}
