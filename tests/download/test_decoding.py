"""Content-Encoding: every coding, decompression bombs, and truncated or corrupt bodies."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import zlib
from pathlib import Path

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as some

from gossamer.compression import zstd
from gossamer.download.decoding import decode, decode_partly, encodings
from gossamer.errors import BadEncoding, ProtocolBroken, TooLarge

SAMPLES = Path(__file__).parents[2] / "../shared/suites/http-scrapy-compressed"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared/suites/http-scrapy-compressed is not there")
LIMIT = 1024 * 1024
TEXT = b"<html>" + b"".join(b"<a href=/%d>link</a>" % number for number in range(3000)) + b"</html>"


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def streamed_zstd(data: bytes) -> bytes:
    stream = zstd.ZstdCompressor()
    return stream.compress(data) + stream.flush()


ENCODERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
}
VARIANTS = [
    *ENCODERS.items(),
    ("deflate", raw_deflate),
    ("zstd", streamed_zstd),
    ("gzip", lambda data: gzip.compress(data[:99]) + gzip.compress(data[99:])),
    ("gzip", lambda data: gzip.compress(data) + b"\0" * 100),
    ("zstd", lambda data: zstd.compress(data[:99]) + streamed_zstd(data[99:])),
]


@pytest.mark.parametrize(("name", "encode"), VARIANTS)
def test_encodings_round_trip(name: str, encode: object) -> None:
    assert decode(encode(TEXT), (name,), LIMIT) == TEXT  # type: ignore[operator]
    assert decode(encode(b"x"), (name,), LIMIT) == b"x"  # type: ignore[operator]


@pytest.mark.parametrize(("name", "encode"), VARIANTS[:7])
def test_truncated_body_is_detected(name: str, encode: object) -> None:
    body = encode(TEXT)  # type: ignore[operator]
    for length in (1, 2, 5, 20, len(body) // 2, len(body) - 9, len(body) - 4, len(body) - 1):
        with pytest.raises((ProtocolBroken, BadEncoding)):
            decode(body[:length], (name,), LIMIT)


@pytest.mark.parametrize(("name", "encode"), VARIANTS)
def test_the_limit_is_exact(name: str, encode: object) -> None:
    body = encode(TEXT)  # type: ignore[operator]
    assert len(decode(body, (name,), len(TEXT))) == len(TEXT)
    with pytest.raises(TooLarge):
        decode(body, (name,), len(TEXT) - 1)


@given(some.lists(some.sampled_from(sorted(ENCODERS)), max_size=5), some.binary(max_size=5000))
def test_stacked_encodings_are_decoded_in_reverse(names: list[str], data: bytes) -> None:
    body = data
    for name in names:
        body = ENCODERS[name](body)
    assert decode(body, encodings([", ".join(names).upper()]), LIMIT) == data
    assert decode(body, encodings([*names]), LIMIT) == data


@given(some.sampled_from(sorted(ENCODERS)), some.binary(min_size=1, max_size=300))
def test_garbage_raises_a_typed_error(name: str, data: bytes) -> None:
    try:
        decode(data, (name,), LIMIT)
    except (BadEncoding, ProtocolBroken, TooLarge):
        pass


def test_corrupt_body_is_refused() -> None:
    body = bytearray(gzip.compress(TEXT))
    body[-6] ^= 1
    with pytest.raises(BadEncoding):
        decode(bytes(body), ("gzip",), LIMIT)


def test_unknown_encodings_are_ignored() -> None:
    assert encodings(["identity", "utf-8, GZIP,", ""]) == ("gzip",)
    assert decode(b"plain", encodings(["none"]), LIMIT) == b"plain"


def test_too_many_layers_are_refused() -> None:
    """H16."""
    with pytest.raises(BadEncoding):
        encodings([", ".join(["gzip"] * 100)])


def test_too_many_empty_members_are_refused() -> None:
    for name, member in (("gzip", gzip.compress(b"")), ("zstd", zstd.compress(b""))):
        with pytest.raises(BadEncoding):
            decode(member * 2000, (name,), LIMIT)


@needs_samples
@pytest.mark.parametrize("name", ["br", "deflate", "gzip", "zstd"])
def test_bombs_of_the_suite_stop_at_the_limit(name: str) -> None:
    """H16."""
    with pytest.raises(TooLarge):
        decode((SAMPLES / f"bomb-{name}.bin").read_bytes(), (name,), LIMIT)


@needs_samples
@pytest.mark.parametrize("path", sorted(SAMPLES.glob("html-*.bin")), ids=lambda path: path.stem)
def test_samples_of_the_suite_decode_to_their_page(path: Path) -> None:
    names = {"zlibdeflate": ["deflate"], "rawdeflate": ["deflate"]}
    kind = path.stem.removeprefix("html-").partition("-s")[0]
    page = decode(path.read_bytes(), tuple(names.get(kind) or kind.split("-")), LIMIT)
    assert b"<title>Tabellen nach Jack Daniels</title>" in page
    assert page.strip().endswith(b"</html>")


@needs_samples
@pytest.mark.parametrize("name", ["truncated-crc-error-short.gz", "truncated-crc-error.gz", "unexpected-eof.gz"])
def test_truncated_samples_of_the_suite_are_not_whole(name: str) -> None:
    with pytest.raises(ProtocolBroken):
        decode((SAMPLES / name).read_bytes(), ("gzip",), LIMIT)


BOMBS = """
import resource, zlib, brotli
from gossamer.compression import zstd
from gossamer.engine.allocator import give_back_freed_memory
give_back_freed_memory()
from gossamer.download.decoding import decode
from gossamer.errors import TooLarge
MIB = 1024 * 1024
stream = zlib.compressobj(9, zlib.DEFLATED, 31)
head = stream.compress(bytes(10 * MIB)) + stream.flush(zlib.Z_FULL_FLUSH)
block = stream.compress(bytes(10 * MIB)) + stream.flush(zlib.Z_FULL_FLUSH)
gzipped = head + block * 1023
twice = zlib.compress(gzipped, 9)
bombs = [(("gzip",), gzipped), (("gzip", "deflate"), twice)]
bombs += [(("zstd",), zstd.compress(bytes(400 * MIB))), (("br",), brotli.compress(bytes(50 * MIB), quality=1))]
del stream, head, block
for _, body in bombs:
    assert len(body) < 11 * MIB
import ctypes; ctypes.CDLL(None).malloc_trim(0)
now = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
with open("/proc/self/clear_refs", "w") as file: file.write("5")
before = now()
for names, body in bombs:
    try:
        decode(body, names, 20 * MIB)
    except TooLarge:
        continue
    raise SystemExit(f"{names} was not stopped")
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print((peak - before) / MIB)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_a_bomb_of_ten_gibibytes_holds_less_than_twice_the_limit() -> None:
    """H16."""
    done = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 40


@pytest.mark.parametrize("name", ENCODERS)
def test_body_over_the_limit_is_kept_up_to_the_limit(name: str) -> None:
    packed = ENCODERS[name](TEXT)
    found, fault = decode_partly(packed, (name,), 1000)
    assert (found, type(fault)) == (TEXT[:1000], TooLarge)
    assert decode_partly(packed, (name,), LIMIT) == (TEXT, None)
    found, fault = decode_partly(ENCODERS[name](packed), (name, name), 1000)
    assert TEXT.startswith(found)
    assert isinstance(fault, TooLarge)


@pytest.mark.parametrize(("name", "encode"), VARIANTS[:7])
def test_truncated_body_keeps_what_was_received(name: str, encode: object) -> None:
    body = encode(TEXT)  # type: ignore[operator]
    sizes = []
    for share in (0.3, 0.6, 0.9, 1):
        found, fault = decode_partly(body[: int(len(body) * share) - 1], (name,), LIMIT)
        assert TEXT.startswith(found)
        assert fault is not None
        sizes.append(len(found))
    assert sizes == sorted(sizes)
    # A zstd frame of one block has nothing to give before its end.
    assert sizes[-1] > 0 or name == "zstd"


def test_corrupt_body_keeps_everything_before_the_fault() -> None:
    noise = random.Random(1).randbytes(300_000)
    for text in (TEXT, noise, bytes(3_000_000)):
        body = bytearray(gzip.compress(text))
        body[-6] ^= 1
        found, fault = decode_partly(bytes(body), ("gzip",), 4 * LIMIT)
        assert found == text
        assert isinstance(fault, BadEncoding)
        assert decode_partly(gzip.compress(text)[:-8], ("gzip",), 4 * LIMIT)[0] == text
    body = bytearray(gzip.compress(noise, 1))
    body[150_000:150_100] = bytes(100)
    found, fault = decode_partly(bytes(body), ("gzip",), LIMIT)
    assert len(found) > 100_000
    assert isinstance(fault, BadEncoding)


def test_padding_after_a_large_body_terminates() -> None:
    """zlib reports data after the end of a stream as unconsumed, again and again."""
    text = bytes(5_000_000)
    assert decode(gzip.compress(text) + b"\0" * 100, ("gzip",), len(text)) == text
    assert decode(zlib.compress(text) + b"\0" * 100, ("deflate",), len(text)) == text


def test_unencoded_body_is_unchanged() -> None:
    for name in ("gzip", "zstd"):
        found, fault = decode_partly(TEXT, (name,), LIMIT)
        assert (found, type(fault)) == (TEXT, BadEncoding)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("text", [b"# long\n" * 1_000_000, bytes(5_000_000), TEXT * 100])
def test_highly_compressed_body_is_complete(name: str, text: bytes) -> None:
    assert decode(ENCODERS[name](text), (name,), len(text)) == text


@pytest.mark.parametrize("name", ["deflate", "gzip"])
def test_data_after_a_multi_step_stream_is_read_once(name: str) -> None:
    """It was read endlessly, and stored each time."""
    coder = zlib.compressobj(wbits=31 if name == "gzip" else -15)
    text = b"x" * (3 * 1024 * 1024)
    body = coder.compress(text) + coder.flush() + b"tail" * 10
    assert decode(body, (name,), 4 * 1024 * 1024) == text
