"""Kafka's error codes as exception classes.

An error is raised deep and turned into an error code in one place, the handler that answers.
`error_for(code)` gives the class of a code read from the wire. Every code that Apache Kafka
defines is here, so that a client never meets a number without a name.
"""

from __future__ import annotations

from typing import ClassVar, Self


class MillstreamError(Exception):
    """Anything that Millstream raises on purpose."""


class ProtocolError(MillstreamError):
    """Bytes that are not a valid message: truncated, out of bounds, or nonsensical."""


class KafkaError(MillstreamError):
    """An error that has a code in the Kafka protocol."""

    code: ClassVar[int]
    retriable: ClassVar[bool]

    def __init_subclass__(cls, *, code: int | None = None, retriable: bool = False) -> None:
        if code is None:
            return
        if code in _BY_CODE:
            raise TypeError(f"error code {code} is claimed by {_BY_CODE[code]} and {cls}")
        cls.code = code
        cls.retriable = retriable
        _BY_CODE[code] = cls

    @property
    def message(self) -> str:
        """What went wrong, for a person: the given text, else the class's own sentence."""
        return str(self.args[0]) if self.args else (self.__doc__ or type(self).__name__)

    def __str__(self) -> str:
        return self.message

    def again(self) -> Self:
        """The same, to be raised in place of one that is kept.

        An error keeps all frames that it was ever raised through, and they what they worked on.
        """
        made = type(self).__new__(type(self), *self.args)
        made.__dict__.update(self.__dict__)
        return made


def kept(error: Exception) -> Exception:
    """An error to be kept for whoever waits: of Kafka's, without the frames that it was raised through.

    Others are mistakes of ours, and their frames are wanted in the log.
    """
    if not isinstance(error, KafkaError):
        return error
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


_BY_CODE: dict[int, type[KafkaError]] = {}

NONE = 0
"""The code that means success."""


def error_for(code: int) -> type[KafkaError]:
    """The class of an error code; UnknownServerError for a code nobody defined."""
    return _BY_CODE.get(code, UnknownServerError)


class UnknownServerError(KafkaError, code=-1):
    """The broker met an error it did not expect; its log says more."""


class OffsetOutOfRange(KafkaError, code=1):
    """The offset is outside the range of offsets that the partition holds."""


class CorruptMessage(KafkaError, code=2, retriable=True):
    """The records do not match their checksum, or are not valid record batches."""


class BadRecords(CorruptMessage):
    """The broker checks what it sends, so trying again gives the same bytes. Seek past them to go on."""

    retriable = False


class UnknownTopicOrPartition(KafkaError, code=3, retriable=True):
    """This broker does not host that topic or partition."""


class InvalidFetchSize(KafkaError, code=4):
    """The fetch size is not valid."""


class LeaderNotAvailable(KafkaError, code=5, retriable=True):
    """The partition has no leader at the moment."""


class NotLeaderOrFollower(KafkaError, code=6, retriable=True):
    """This broker is not the leader, or not a replica, of that partition."""


class RequestTimedOut(KafkaError, code=7, retriable=True):
    """The time-out ran out before the request was done."""


class BrokerNotAvailable(KafkaError, code=8): ...


class ReplicaNotAvailable(KafkaError, code=9, retriable=True): ...


class MessageTooLarge(KafkaError, code=10):
    """The record batch is larger than the topic's max.message.bytes."""


class StaleControllerEpoch(KafkaError, code=11): ...


class OffsetMetadataTooLarge(KafkaError, code=12):
    """The metadata of the committed offset is too long."""


class NetworkException(KafkaError, code=13, retriable=True): ...


class CoordinatorLoadInProgress(KafkaError, code=14, retriable=True):
    """The coordinator is still reading what it looks after; try again."""


class CoordinatorNotAvailable(KafkaError, code=15, retriable=True):
    """There is no coordinator at the moment; try again."""


class NotCoordinator(KafkaError, code=16, retriable=True):
    """This broker does not coordinate that group or transactional id."""


class InvalidTopic(KafkaError, code=17):
    """The topic's name is not valid."""


class RecordListTooLarge(KafkaError, code=18):
    """The record batches are larger than a whole segment."""


class NotEnoughReplicas(KafkaError, code=19, retriable=True):
    """The partition has fewer in-sync replicas than min.insync.replicas."""


class NotEnoughReplicasAfterAppend(KafkaError, code=20, retriable=True):
    """The records were written, but to fewer in-sync replicas than asked for."""


class InvalidRequiredAcks(KafkaError, code=21):
    """acks must be 0, 1 or -1 (all)."""


class IllegalGeneration(KafkaError, code=22):
    """The group is in another generation than the request."""


class InconsistentGroupProtocol(KafkaError, code=23):
    """The group speaks another protocol, or none that the member speaks too."""


class InvalidGroupId(KafkaError, code=24):
    """The group's id is not valid."""


class UnknownMemberId(KafkaError, code=25):
    """The group does not know this member."""


class InvalidSessionTimeout(KafkaError, code=26):
    """The session time-out is outside of the broker's limits."""


class RebalanceInProgress(KafkaError, code=27):
    """The group is sharing its partitions anew; the member has to join again."""


class InvalidCommitOffsetSize(KafkaError, code=28): ...


class TopicAuthorizationFailed(KafkaError, code=29): ...


class GroupAuthorizationFailed(KafkaError, code=30): ...


class ClusterAuthorizationFailed(KafkaError, code=31): ...


class InvalidTimestamp(KafkaError, code=32):
    """A record's timestamp is out of the range that the topic accepts."""


class UnsupportedSaslMechanism(KafkaError, code=33): ...


class IllegalSaslState(KafkaError, code=34): ...


class UnsupportedVersion(KafkaError, code=35):
    """The version of the API is not supported."""


class TopicAlreadyExists(KafkaError, code=36):
    """The topic exists already."""


class InvalidPartitions(KafkaError, code=37):
    """The number of partitions is not valid."""


class InvalidReplicationFactor(KafkaError, code=38):
    """The replication factor is not valid: below 1, or more than there are brokers."""


class InvalidReplicaAssignment(KafkaError, code=39):
    """The replica assignment is not valid."""


class InvalidConfig(KafkaError, code=40):
    """A configuration is not valid."""


class NotController(KafkaError, code=41, retriable=True): ...


class InvalidRequest(KafkaError, code=42):
    """The request is not valid."""


class UnsupportedForMessageFormat(KafkaError, code=43):
    """The record format is too old for this request."""


class PolicyViolation(KafkaError, code=44):
    """It is not allowed by a policy; a topic's records can be deleted if its cleanup.policy has `delete`."""


class OutOfOrderSequenceNumber(KafkaError, code=45):
    """The producer's sequence number is not the next one."""


class DuplicateSequenceNumber(KafkaError, code=46):
    """The producer sent this sequence number already."""


class InvalidProducerEpoch(KafkaError, code=47):
    """The producer used an epoch that a newer one has replaced."""


class InvalidTxnState(KafkaError, code=48): ...


class InvalidProducerIdMapping(KafkaError, code=49): ...


class InvalidTransactionTimeout(KafkaError, code=50): ...


class ConcurrentTransactions(KafkaError, code=51, retriable=True): ...


class TransactionCoordinatorFenced(KafkaError, code=52): ...


class TransactionalIdAuthorizationFailed(KafkaError, code=53): ...


class SecurityDisabled(KafkaError, code=54): ...


class OperationNotAttempted(KafkaError, code=55): ...


class KafkaStorageError(KafkaError, code=56, retriable=True):
    """The log directory cannot be written or read at the moment."""


class LogDirNotFound(KafkaError, code=57):
    """There is no such log directory."""


class SaslAuthenticationFailed(KafkaError, code=58): ...


class UnknownProducerId(KafkaError, code=59):
    """The producer id is not known: its records have been deleted."""


class ReassignmentInProgress(KafkaError, code=60): ...


class DelegationTokenAuthDisabled(KafkaError, code=61): ...


class DelegationTokenNotFound(KafkaError, code=62): ...


class DelegationTokenOwnerMismatch(KafkaError, code=63): ...


class DelegationTokenRequestNotAllowed(KafkaError, code=64): ...


class DelegationTokenAuthorizationFailed(KafkaError, code=65): ...


class DelegationTokenExpired(KafkaError, code=66): ...


class InvalidPrincipalType(KafkaError, code=67): ...


class NonEmptyGroup(KafkaError, code=68):
    """The group has members."""


class GroupIdNotFound(KafkaError, code=69):
    """There is no such group."""


class FetchSessionIdNotFound(KafkaError, code=70, retriable=True):
    """The fetch session is not known."""


class InvalidFetchSessionEpoch(KafkaError, code=71, retriable=True):
    """The fetch session's epoch is not the next one."""


class ListenerNotFound(KafkaError, code=72, retriable=True): ...


class TopicDeletionDisabled(KafkaError, code=73):
    """Topic deletion is switched off (delete.topic.enable=false)."""


class FencedLeaderEpoch(KafkaError, code=74, retriable=True):
    """The leader epoch is older than the partition's."""


class UnknownLeaderEpoch(KafkaError, code=75, retriable=True):
    """The leader epoch is newer than the partition's."""


class UnsupportedCompressionType(KafkaError, code=76):
    """The compression codec is not supported in this version of the request."""


class StaleBrokerEpoch(KafkaError, code=77): ...


class OffsetNotAvailable(KafkaError, code=78, retriable=True):
    """The high watermark of the new leader is not known yet."""


class MemberIdRequired(KafkaError, code=79):
    """The member has to join again with the id that it was given."""


class PreferredLeaderNotAvailable(KafkaError, code=80, retriable=True): ...


class GroupMaxSizeReached(KafkaError, code=81):
    """The group has as many members as it may have."""


class FencedInstanceId(KafkaError, code=82):
    """Another member has taken over this group instance id."""


class EligibleLeadersNotAvailable(KafkaError, code=83, retriable=True): ...


class ElectionNotNeeded(KafkaError, code=84, retriable=True):
    """The partition has the leader already that an election would give it."""


class NoReassignmentInProgress(KafkaError, code=85): ...


class GroupSubscribedToTopic(KafkaError, code=86):
    """Members of the group are subscribed to this topic."""


class InvalidRecord(KafkaError, code=87):
    """A record is not valid for this topic."""


class UnstableOffsetCommit(KafkaError, code=88, retriable=True):
    """An open transaction may still move the group; try again."""


class ThrottlingQuotaExceeded(KafkaError, code=89, retriable=True): ...


class ProducerFenced(KafkaError, code=90): ...


class ResourceNotFound(KafkaError, code=91): ...


class DuplicateResource(KafkaError, code=92): ...


class UnacceptableCredential(KafkaError, code=93): ...


class InconsistentVoterSet(KafkaError, code=94): ...


class InvalidUpdateVersion(KafkaError, code=95): ...


class FeatureUpdateFailed(KafkaError, code=96): ...


class PrincipalDeserializationFailure(KafkaError, code=97): ...


class SnapshotNotFound(KafkaError, code=98): ...


class PositionOutOfRange(KafkaError, code=99): ...


class UnknownTopicId(KafkaError, code=100, retriable=True):
    """No topic has this id."""


class DuplicateBrokerRegistration(KafkaError, code=101): ...


class BrokerIdNotRegistered(KafkaError, code=102): ...


class InconsistentTopicId(KafkaError, code=103, retriable=True):
    """The topic's id is not the one the log was written under."""


class InconsistentClusterId(KafkaError, code=104): ...


class TransactionalIdNotFound(KafkaError, code=105): ...


class FetchSessionTopicIdError(KafkaError, code=106, retriable=True):
    """The fetch session mixes topic ids and names."""


class IneligibleReplica(KafkaError, code=107): ...


class NewLeaderElected(KafkaError, code=108): ...


class OffsetMovedToTieredStorage(KafkaError, code=109): ...


class FencedMemberEpoch(KafkaError, code=110): ...


class UnreleasedInstanceId(KafkaError, code=111): ...


class UnsupportedAssignor(KafkaError, code=112): ...


class StaleMemberEpoch(KafkaError, code=113): ...


class MismatchedEndpointType(KafkaError, code=114): ...


class UnsupportedEndpointType(KafkaError, code=115): ...


class UnknownControllerId(KafkaError, code=116): ...


class UnknownSubscriptionId(KafkaError, code=117): ...


class TelemetryTooLarge(KafkaError, code=118): ...


class InvalidRegistration(KafkaError, code=119): ...


class TransactionAbortable(KafkaError, code=120): ...


class InvalidRecordState(KafkaError, code=121): ...


class ShareSessionNotFound(KafkaError, code=122, retriable=True): ...


class InvalidShareSessionEpoch(KafkaError, code=123, retriable=True): ...


class FencedStateEpoch(KafkaError, code=124): ...


class InvalidVoterKey(KafkaError, code=125): ...


class DuplicateVoter(KafkaError, code=126): ...


class VoterNotFound(KafkaError, code=127): ...


class InvalidRegularExpression(KafkaError, code=128): ...


class RebootstrapRequired(KafkaError, code=129): ...


class StreamsInvalidTopology(KafkaError, code=130): ...


class StreamsInvalidTopologyEpoch(KafkaError, code=131): ...


class StreamsTopologyFenced(KafkaError, code=132): ...


class ShareSessionLimitReached(KafkaError, code=133, retriable=True): ...
