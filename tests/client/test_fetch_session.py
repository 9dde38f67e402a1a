"""What a fetch session says, and what it leaves unsaid."""

from __future__ import annotations

from uuid import UUID

from millstream.client.fetch_session import LARGEST_EPOCH, FetchLimits, FetchSession, Wanted
from millstream.model import TopicPartition
from millstream.protocol.messages import FetchRequest, FetchResponse

X, Y = UUID(int=1), UUID(int=2)
LIMITS = FetchLimits()


def ask(session: FetchSession, wanted: dict[TopicPartition, Wanted]) -> FetchRequest:
    return session.request(wanted, LIMITS, 0, "")


def said(request: FetchRequest) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, part.partition): part.fetch_offset
        for topic in request.topics
        for part in topic.partitions
    }


def answer(session_id: int, error_code: int = 0) -> FetchResponse:
    return FetchResponse(session_id=session_id, error_code=error_code, responses=[])


def topic_answer(topic_id: UUID) -> FetchResponse.FetchableTopicResponse:
    return FetchResponse.FetchableTopicResponse(topic_id=topic_id, partitions=[])


def test_says_all_first_and_then_only_what_has_changed() -> None:
    session = FetchSession()
    wanted = {TopicPartition("x", 0): Wanted(X, 0, 1), TopicPartition("x", 1): Wanted(X, 0, 1)}
    request = ask(session, wanted)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert said(request) == {("x", 0): 0, ("x", 1): 0}
    session.answered(answer(session_id=77))

    request = ask(session, {**wanted, TopicPartition("x", 0): Wanted(X, 10, 1)})
    assert (request.session_id, request.session_epoch) == (77, 1)
    assert said(request) == {("x", 0): 10}
    assert request.forgotten_topics_data == []
    session.answered(answer(session_id=77))

    request = ask(session, {TopicPartition("y", 0): Wanted(Y, 5, 0)})
    assert (request.session_id, request.session_epoch) == (77, 2)
    assert said(request) == {("y", 0): 5}
    assert [(each.topic, each.partitions) for each in request.forgotten_topics_data] == [("x", [0, 1])]


def test_a_topic_made_anew_is_forgotten_under_its_old_id() -> None:
    session = FetchSession()
    ask(session, {TopicPartition("x", 0): Wanted(X, 3, 1)})
    session.answered(answer(session_id=5))
    request = ask(session, {TopicPartition("x", 0): Wanted(Y, 0, 0)})
    assert [each.topic_id for each in request.topics] == [Y]
    assert [each.topic_id for each in request.forgotten_topics_data] == [X]


def test_begins_again_after_an_error_or_where_the_broker_keeps_no_session() -> None:
    for last in (answer(session_id=9, error_code=70), answer(session_id=0)):
        session = FetchSession()
        wanted = {TopicPartition("x", 0): Wanted(X, 0, 1)}
        ask(session, wanted)
        session.answered(answer(session_id=9))
        ask(session, wanted)
        session.answered(last)
        request = ask(session, wanted)
        assert (request.session_id, request.session_epoch) == (0, 0)
        assert said(request) == {("x", 0): 0}


def test_the_epoch_after_the_largest_is_one() -> None:
    session = FetchSession()
    session.id, session.epoch = 5, LARGEST_EPOCH
    session.answered(answer(session_id=5))
    assert session.epoch == 1


def test_names_topics_of_an_answer_by_their_ids() -> None:
    session = FetchSession()
    ask(session, {TopicPartition("x", 0): Wanted(X, 0, 1)})
    assert session.name_of(topic_answer(X)) == "x"
    assert session.name_of(topic_answer(Y)) == ""
    assert not session.has_names_only
