"""Addresses in object stores, on an S3 server of its own."""

import pytest

from multigate.configs import DataError, storage
from multigate.configs.files import new_file, write_json
from multigate.configs.storage import Address, place

SECRETS = ("AKIATEST", "not-to-be-shown")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("s3://b/a/c", "s3://b/a/c"), ("s3://b//a/", "s3://b/a"), ("gs://b", "gs://b")],
)
def test_addresses_have_one_form(text, expected):
    found = place(text)
    assert isinstance(found, Address)
    assert str(found) == expected


def test_local_paths_stay_paths(tmp_path):
    assert place(str(tmp_path)) == place(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hdfs://host/x", r"hdfs://...: expected a local path, s3://bucket/key or gs://bucket/key"),
        ("s3://", "s3://: expected s3://bucket/key, received no bucket"),
        ("s3://AKIATEST:not-to-be-shown@b/x", "credentials do not belong in an address"),
    ],
)
def test_what_is_no_address_is_said(text, message):
    with pytest.raises(DataError, match=message) as error:
        place(text)
    assert not any(secret in str(error.value) for secret in SECRETS)


def test_parts_of_an_address():
    address = place("s3://b/logs/a.csv")
    assert (address.name, str(address.parent)) == ("a.csv", "s3://b/logs")
    assert str(address.with_name("b")) == "s3://b/logs/b"


FILES = ("c.txt", "date=1/a.csv", "date=2/b.csv.gz", "date=2/deep/d.csv")


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*", FILES[:1]),
        ("c.txt", FILES[:1]),
        ("date=2/*", FILES[2:3]),
        ("date=*/*.csv*", FILES[1:3]),
        ("date=[!1]/?.csv.gz", FILES[2:3]),
        ("**/*.csv", (FILES[1], FILES[3])),
        ("date=2/**", FILES[2:]),
        ("*.csv", ()),
    ],
)
def test_globs_match_as_in_local_folders(glob, expected, bucket, tmp_path):
    root = bucket.address / "logs"
    for name in FILES:
        (root / name).write_bytes(name.encode())
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    found = {address.text.removeprefix(f"{root}/"): address.size for address in root.glob(glob)}
    assert found == {name: len(name) for name in expected}
    local = [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob(glob)]
    if not glob.endswith("**"):  # where Python 3.11 lists folders only
        assert sorted(name for name in local if (tmp_path / name).is_file()) == list(found)
    assert root.names() == ["c.txt", "date=1", "date=2"]


@pytest.mark.slow
def test_files_are_written_as_they_are_and_read_in_pieces(bucket, tmp_path):
    address = bucket.address / "a.csv.gz"  # a name that pyarrow would compress for
    content = b"line\n" * 700_000
    address.write_bytes(content)
    assert address.read_bytes() == content
    with address.open() as file:
        assert file.readline() == b"line\n"
        assert file.seek(-5, 2) == len(content) - 5
        assert file.read() == b"line\n"
    (found,) = bucket.address.files().values()
    found.download(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    write_json(bucket.address / "x.json", {"a": "é"})
    assert (bucket.address / "x.json").read_text() == '{\n  "a": "é"\n}\n'


def test_an_attempt_that_fails_leaves_the_file_as_it_was(bucket):
    address = bucket.address / "part"
    with new_file(address) as temporary:
        temporary.write_bytes(b"whole")
    with pytest.raises(OSError, match="full"), new_file(address) as temporary:
        temporary.write_bytes(b"half")
        raise OSError("full")
    assert address.read_bytes() == b"whole"


def test_missing_files_are_missing(bucket):
    assert not (bucket.address / "x").is_file()
    with pytest.raises(FileNotFoundError) as error:
        (bucket.address / "x").read_bytes()
    assert error.value.filename == f"{bucket.address}/x"


def test_google_cloud_storage_works_alike(gs_address, tmp_path):
    for name in FILES:
        (gs_address / name).write_bytes(name.encode())
    assert {name: file.size for name, file in gs_address.files().items()} == {
        name: len(name) for name in FILES
    }
    assert [file.name for file in gs_address.glob("date=*/*.csv*")] == ["a.csv", "b.csv.gz"]
    assert gs_address.names() == ["c.txt", "date=1", "date=2"]
    for name, file in gs_address.files().items():
        file.download(tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == file.read_bytes() == name.encode()
    (gs_address / "c.txt").unlink()
    assert not (gs_address / "c.txt").is_file()
    with pytest.raises(FileNotFoundError):
        (gs_address / "c.txt").read_bytes()
    gs_address.remove_files()
    assert gs_address.files() == {}


@pytest.mark.parametrize("use", ["files", "names", "read_text", "write_bytes"])
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_wrong_bucket_is_named(scheme, use, bucket, gs_address):
    address = Address(f"{scheme}://no-such-bucket/x")
    arguments = [b"content"] if use == "write_bytes" else []
    with pytest.raises((DataError, FileNotFoundError), match=r"no bucket 'no-such|No such file"):
        getattr(address, use)(*arguments)


def test_missing_credentials_are_named_without_their_values(bucket, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for use in ("files", "read_text"):
        with pytest.raises(DataError, match=r"access denied \(.*\); expected credentials") as error:
            getattr(bucket.address / "x", use)()
        assert not any(secret in str(error.value) for secret in SECRETS)


@pytest.mark.slow
def test_a_busy_store_is_asked_again(bucket):
    address = bucket.address / "x"
    bucket.busy(2, "PUT")
    address.write_bytes(b"1")
    bucket.busy(2, "GET")
    assert address.read_bytes() == b"1"
    assert bucket.busy(0) == 2


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_asked_again(bucket, monkeypatch):
    monkeypatch.setattr(storage, "_SILENCE", 1.0)
    storage._connect.cache_clear()
    bucket.busy(1, "PUT", "slow")
    (bucket.address / "x").write_bytes(b"1")
    assert bucket.busy(0) == 1
    assert (bucket.address / "x").read_bytes() == b"1"


def test_a_full_store_is_one_line(bucket):
    bucket.busy(1000, "PUT", "full")
    with pytest.raises(DataError, match=r"s3://.*/x: cannot be written: the store has no room"):
        (bucket.address / "x").write_bytes(b"1")
    assert bucket.busy(0) == 1  # it is not asked again


@pytest.mark.long  # the pauses between attempts grow to seconds
def test_a_store_that_stays_busy_is_one_line(bucket):
    bucket.busy(1000)
    with pytest.raises(DataError, match=r"s3://.*/x: cannot be .*: the store was busy at each of"):
        (bucket.address / "x").write_bytes(b"1")
