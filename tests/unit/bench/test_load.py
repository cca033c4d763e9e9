import pytest

from bench.load import Progress, Target, WrongReply, body_of, check, is_whole

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"


@pytest.mark.parametrize("reply", [WHOLE, CHUNKED])
def test_a_reply_is_whole_with_its_last_byte_and_not_before(reply: bytes) -> None:
    assert [is_whole(reply[:end]) for end in range(len(reply) + 1)] == [False] * len(reply) + [True]


@pytest.mark.parametrize("reply", [WHOLE, CHUNKED])
def test_the_body_is_joined_from_its_chunks(reply: bytes) -> None:
    assert body_of(reply) == b"hello"


def test_an_error_is_not_measured_as_an_answer() -> None:
    with pytest.raises(WrongReply, match="429"):
        body_of(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}")


def test_a_reply_that_differs_in_one_byte_is_refused() -> None:
    check(WHOLE, b"hello")
    with pytest.raises(WrongReply, match="instead of"):
        check(WHOLE, b"hellO")


def test_a_request_carries_the_headers_of_its_system() -> None:
    request = Target(1, (("authorization", "Bearer k"),)).request(b"{}")
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"\r\nauthorization: Bearer k\r\n" in head
    assert head.endswith(b"content-length: 2")
    assert body == b"{}"


def test_all_streams_have_begun_when_the_last_one_has() -> None:
    progress = Progress(streams=2)
    progress.note(1, first=True)
    progress.note(3, first=False)
    assert not progress.all_begun.is_set()
    progress.note(1, first=True)
    assert progress.all_begun.is_set()
    assert progress.events == 5
