"""Messages framed once, in exactly the bytes that a consumer will receive."""

import struct
from array import array
from types import ModuleType
from typing import Any

import pytest
from twins import BASE, DRESSES

from lapwing.errors import PublishRefused
from lapwing.kernel import BAD_COUNT, BAD_SIZE, SHORT, SURPLUS, TOO_BIG, crc32c

NOW = 0x0102030405060708


def frame(body: bytes, identity: int, *, now: int = NOW, attempts: int = 1) -> bytes:
    """A message as the protocol draws it."""
    return struct.pack(">IIqH16s", len(body) + 30, 2, now, attempts, b"%016x" % identity) + body


def mpub(*bodies: bytes, count: int | None = None) -> bytes:
    """The body of an MPUB, which may lie about its count."""
    head = struct.pack(">i", len(bodies) if count is None else count)
    return head + b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 5])
def test_a_message_is_framed_as_the_protocol_draws_it(kernel: ModuleType, body: bytes, dress: Any) -> None:
    assert kernel.frame_one(dress(body), BASE | 9, NOW) == frame(body, BASE | 9)


def test_ids_rise_through_a_batch(kernel: ModuleType) -> None:
    expected = frame(b"one", BASE) + frame(b"", BASE + 1) + frame(b"three", BASE + 2)

    assert kernel.frame_bodies([b"one", b"", b"three"], BASE, NOW) == expected
    assert kernel.frame_bodies([], BASE, NOW) == b""


def test_bodies_may_come_in_any_dress_and_only_once(kernel: ModuleType) -> None:
    bodies = (each for each in (b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], array("H", [0x6464])))
    expected = b"".join(frame(body, BASE + at) for at, body in enumerate((b"a", b"b", b"c", b"dd")))

    assert kernel.frame_bodies(bodies, BASE, NOW) == expected


@pytest.mark.parametrize("now", [0, -1, 2**63 - 1, -(2**63)])
def test_any_time_of_64_bits_is_kept(kernel: ModuleType, now: int) -> None:
    assert kernel.frame_one(b"x", BASE, now) == frame(b"x", BASE, now=now)


@pytest.mark.parametrize("now", [2**63, -(2**63) - 1])
def test_a_time_that_does_not_fit_is_refused(kernel: ModuleType, now: int) -> None:
    for frames in (
        lambda: kernel.frame_one(b"x", BASE, now),
        lambda: kernel.frame_bodies([], BASE, now),
        lambda: kernel.frame_mpub(b"", BASE, now, 10, 10),
    ):
        with pytest.raises(OverflowError):
            frames()


def test_ids_wrap_at_64_bits(kernel: ModuleType) -> None:
    frames = frame(b"a", 2**64 - 1) + frame(b"b", 0)

    assert kernel.frame_bodies([b"a", b"b"], 2**64 - 1, NOW) == frames
    assert kernel.frame_bodies([b"a", b"b"], -1, NOW) == frames
    assert kernel.frame_mpub(mpub(b"a", b"b"), -1, NOW, 10, 10) == (frames, 2)


@pytest.mark.parametrize("wrong", ["text", 5, None, memoryview(b"abcd")[::2]])
def test_what_holds_no_bytes_is_not_framed(kernel: ModuleType, wrong: Any) -> None:
    with pytest.raises((TypeError, BufferError)):
        kernel.frame_one(wrong, BASE, NOW)
    with pytest.raises((TypeError, BufferError)):
        kernel.frame_bodies([b"fine", wrong], BASE, NOW)
    with pytest.raises((TypeError, BufferError)):
        kernel.frame_mpub(wrong, BASE, NOW, 10, 10)


# --- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dress", DRESSES)
def test_a_batch_is_framed_whole(kernel: ModuleType, dress: Any) -> None:
    frames, count = kernel.frame_mpub(dress(mpub(b"one", b"two", b"3")), BASE | 5, NOW, 3, 3)

    assert count == 3
    assert frames == kernel.frame_bodies([b"one", b"two", b"3"], BASE | 5, NOW)


@pytest.mark.parametrize(
    ("body", "code", "index", "value"),
    [
        (b"", SHORT, -1, 0),
        (b"\0\0\0", SHORT, -1, 3),
        (mpub(), BAD_COUNT, -1, 0),
        (mpub(b"a", count=-1), BAD_COUNT, -1, -1),
        (mpub(b"a", b"b", b"c", b"d"), BAD_COUNT, -1, 4),
        (mpub(b"a", count=2), SHORT, 1, 9),
        (mpub(b"a", count=2) + b"\0\0\0", SHORT, 1, 12),
        (mpub(b"a", b""), BAD_SIZE, 1, 0),
        (mpub(b"a", count=2) + b"\xff\xff\xff\xfe", BAD_SIZE, 1, -2),
        (mpub(b"a", b"12345"), TOO_BIG, 1, 5),
        (mpub(b"a", b"b")[:-1], SHORT, 1, 13),
        (mpub(b"a", b"b") + b"!", SURPLUS, 2, 14),
        (mpub(b"a", b"b", count=1), SURPLUS, 1, 9),
    ],
)
def test_a_batch_that_lies_is_refused_with_what_is_wrong(
    kernel: ModuleType, body: bytes, code: int, index: int, value: int
) -> None:
    with pytest.raises(PublishRefused) as refused:
        kernel.frame_mpub(body, BASE, NOW, 3, 4)

    assert (refused.value.code, refused.value.index, refused.value.value) == (code, index, value)


def test_a_count_of_billions_takes_no_memory(kernel: ModuleType) -> None:
    with pytest.raises(PublishRefused) as refused:
        kernel.frame_mpub(mpub(b"a", count=2**31 - 1), BASE, NOW, 1 << 80, 1 << 80)

    assert refused.value.code == SHORT


def test_no_limit_lets_a_body_outgrow_its_frame(kernel: ModuleType) -> None:
    body = struct.pack(">ii", 1, 2**31 - 30)

    with pytest.raises(PublishRefused) as refused:
        kernel.frame_mpub(body, BASE, NOW, 10, 1 << 80)

    assert refused.value.code == TOO_BIG


# --- what is said again --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dress", DRESSES)
def test_a_redelivery_differs_in_its_attempts_alone(kernel: ModuleType, dress: Any) -> None:
    assert kernel.with_attempts(dress(frame(b"body", BASE)), 0x1234) == frame(b"body", BASE, attempts=0x1234)


@pytest.mark.parametrize(("attempts", "said"), [(0, 0), (65535, 65535), (65536, 65535), (1 << 70, 65535), (-1, 0)])
def test_attempts_never_fall_however_many_there_are(kernel: ModuleType, attempts: int, said: int) -> None:
    assert kernel.with_attempts(frame(b"", BASE), attempts) == frame(b"", BASE, attempts=said)


def test_less_than_a_head_is_no_frame(kernel: ModuleType) -> None:
    with pytest.raises(ValueError):
        kernel.with_attempts(bytes(33), 2)


def test_each_redelivery_of_a_run_has_its_own_attempts(kernel: ModuleType) -> None:
    run = frame(b"a", BASE) + frame(b"", BASE + 1) + frame(b"ccc", BASE + 2)

    again = kernel.with_each_attempts(run, [2, 1 << 70, 7])

    expected = [(b"a", BASE, 2), (b"", BASE + 1, 65535), (b"ccc", BASE + 2, 7)]
    assert again == b"".join(frame(body, identity, attempts=tries) for body, identity, tries in expected)
    assert run.startswith(frame(b"a", BASE))
    for wrong in ([], [2, 2], [2, 2, 2, 2]):
        with pytest.raises(ValueError, match="frames were expected"):
            kernel.with_each_attempts(run, wrong)


def test_the_frame_that_was_given_stays_as_it_is(kernel: ModuleType) -> None:
    given = frame(b"body", BASE)
    kernel.with_attempts(given, 9)

    assert given == frame(b"body", BASE)


@pytest.mark.parametrize("dress", DRESSES)
def test_the_checksum_is_crc32c_and_goes_on(dress: Any) -> None:
    assert crc32c(dress(b"123456789")) == 0xE3069283
    assert crc32c(dress(b"6789"), crc32c(dress(b"12345"))) == 0xE3069283
    assert crc32c(dress(b"")) == 0


def test_whole_messages_of_a_batch_are_found_up_to_the_first_that_is_not(kernel: ModuleType) -> None:
    body = mpub(b"a", b"bb", b"ccc")

    assert kernel.mpub_run(body, 4, 3, 10) == (3, len(body))
    assert kernel.mpub_run(body, 4, 2, 10) == (2, 15)
    assert kernel.mpub_run(body, 15, 9, 10) == (1, len(body))
    found = [kernel.mpub_run(body[:end], 4, 3, 10) for end in (4, 8, 9, 14, 15)]
    assert found == [(0, 4), (0, 4), (1, 9), (1, 9), (2, 15)]
    assert kernel.mpub_run(body, 4, 3, 2) == (2, 15)
    assert kernel.mpub_run(mpub(b"a", b"", b"c"), 4, 3, 10) == (1, 9)
    assert kernel.mpub_run(body, 400, 3, 10) == (0, 400)
