"""What a consumer reads: its partitions, where it is in each, and what was fetched ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from millstream.client.consumer_errors import NotSubscribed
from millstream.client.record import ReadBatch
from millstream.model import TopicPartition
from millstream.protocol.consumer_kernel import Record, RecordReader

NOT_KNOWN = -1


class PartitionState:
    """One partition that is read.

    `fetch_position` is where the next Fetch begins, NOT_KNOWN until it was looked up; what lies between
    the position of the consumer and there waits in `readers`. `reset_to` is the time, or EARLIEST or
    LATEST, at which to begin; where it is None, the group's committed offset comes first.
    `turn` grows with every seek, so that the answer to an older Fetch is known for what it is; `began` is
    where reading began then.
    """

    __slots__ = (
        "began",
        "fetch_position",
        "high_watermark",
        "is_fetching",
        "is_live",
        "is_paused",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "partition",
        "position_epoch",
        "preferred_replica",
        "preferred_until",
        "readers",
        "reset_to",
        "retry_at",
        "turn",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.fetch_position = self.began = NOT_KNOWN
        self.position_epoch = -1
        self.leader_epoch = -1
        self.reset_to: int | None = None
        self.readers: deque[RecordReader] = deque()
        self.is_paused = False
        self.is_fetching = False
        self.is_live = True
        self.turn = 0
        self.retry_at = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.preferred_replica = -1
        self.preferred_until = 0.0

    @property
    def position(self) -> int:
        """The offset of the next record that the caller gets; NOT_KNOWN until it was looked up."""
        reader = self._first
        return self.fetch_position if reader is None else reader.position

    @property
    def _first(self) -> RecordReader | None:
        """What the caller reads now; its thread may finish it at any moment."""
        try:
            return self.readers[0]
        except IndexError:
            return None

    @property
    def consumed_epoch(self) -> int:
        """The leader epoch of the last record that the caller got, where one is known."""
        reader = self._first
        return self.position_epoch if reader is None or reader.leader_epoch < 0 else reader.leader_epoch

    def seek(self, offset: int, leader_epoch: int = -1) -> None:
        """Go on at an offset; what was fetched ahead is dropped."""
        self._restart()
        self.fetch_position = self.began = offset
        self.position_epoch = leader_epoch

    def seek_by(self, time_ms: int | None) -> None:
        """Go on at a time, EARLIEST or LATEST, or (None) where the group is."""
        self._restart()
        self.fetch_position = self.began = NOT_KNOWN
        self.position_epoch = -1
        self.reset_to = time_ms

    def _restart(self) -> None:
        self.turn += 1
        self.is_fetching = False
        self.readers.clear()
        self.preferred_replica = -1
        self.retry_at = 0.0
        self.reset_to = None


class Assignment:
    """The partitions that are read, and the readers whose records may be handed out, in order.

    Records are taken from `ready` by the caller's thread, all else happens on the event loop: it
    changes what is there already only while the caller waits for it.
    """

    def __init__(self, on_taken: Callable[[], None], on_changed: Callable[[], None]) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}
        self._on_taken = on_taken
        self._on_changed = on_changed
        self.ready: deque[RecordReader] = deque()
        self.has_room_again = False
        self.taking: dict[PartitionState, tuple[int, int, int]] = {}
        """Where the poll that is under way began in each partition: turn, position and its leader epoch."""

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._states

    def __getitem__(self, partition: TopicPartition) -> PartitionState:
        try:
            return self._states[TopicPartition(*partition)]
        except KeyError:
            raise NotSubscribed(f"partition {TopicPartition(*partition)} is not assigned") from None

    def get(self, partition: TopicPartition) -> PartitionState | None:
        return self._states.get(partition)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._states)

    @property
    def buffered_bytes(self) -> int:
        """How much was fetched and not yet taken, of partitions that are not paused.

        It is counted anew: a signal in the caller's thread may leave a running sum half-way.
        """
        return sum(
            reader.size_bytes for state in self if not state.is_paused for reader in tuple(state.readers)
        )

    @property
    def progress(self) -> dict[tuple[TopicPartition, int], int]:
        """How far records were taken since the last seek of each partition: what only lies ready, and
        positions that were looked up, make no difference."""
        return {
            (state.partition, state.turn): position
            for state in self
            if (position := state.position) != state.began
        }

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin to read partitions, each where its group is or as the reset policy says."""
        for partition in partitions:
            if partition not in self._states:
                self._states[partition] = PartitionState(partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading partitions; what was fetched ahead of them is dropped."""
        for partition in partitions:
            state = self._states.pop(partition, None)
            if state is not None:
                state.is_live = False
                state.seek(NOT_KNOWN)
        self.refresh()

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Go on at an offset."""
        self[partition].seek(offset, leader_epoch)
        self.refresh()

    def seek_by(self, partitions: Iterable[TopicPartition], time_ms: int | None) -> None:
        """Go on at a time, EARLIEST or LATEST, or (None) where the group is."""
        for partition in list(partitions):
            self[partition].seek_by(time_ms)
        self.refresh()

    def refresh(self) -> None:
        """Hand out what lies ready, and only that, after a seek, a pause or a change of partitions."""
        kept = [reader for reader in self.ready if self._is_ready(reader)]
        seen = set(map(id, kept))
        kept += [
            reader
            for state in self
            for reader in list(state.readers)
            if id(reader) not in seen and self._is_ready(reader)
        ]
        self.ready.clear()
        self.ready.extend(kept)
        self._on_changed()
        self._on_taken()

    @staticmethod
    def _is_ready(reader: RecordReader) -> bool:
        state: PartitionState = reader.owner
        return state.is_live and not state.is_paused and reader in state.readers

    def take_back(self) -> None:
        """Let what a poll took, and the caller never got, be handed out again."""
        taking, self.taking = self.taking, {}
        for state, (turn, position, leader_epoch) in taking.items():
            if state.is_live and state.turn == turn and state.position != position:
                self.seek(state.partition, position, leader_epoch)

    def put(self, state: PartitionState, reader: RecordReader) -> None:
        """What a Fetch brought from a partition."""
        state.readers.append(reader)
        state.fetch_position = reader.end_offset
        if not state.is_paused:
            self.ready.append(reader)

    # ---------------------------------------------------------------- the caller's thread

    def note(self, reader: RecordReader) -> None:
        """Remember where a partition is before records are taken from it: `take_back` goes back there."""
        state: PartitionState = reader.owner
        if state not in self.taking:
            self.taking[state] = state.turn, state.position, state.consumed_epoch

    def take(self, count: int) -> list[Record]:
        """At most so many records of those that lie ready."""
        ready = self.ready
        records: list[Record] = []
        while ready and count > 0:
            reader = ready[0]
            self.note(reader)
            taken = reader.take(count) if not records else self._take_after(reader, count)
            count -= len(taken)
            records = records + taken if records else taken
            if not reader.is_done:
                break
            self.finish(reader)
        return records

    def take_batches(self, least: int) -> list[ReadBatch]:
        """What lies ready, batch by batch, until so many records were taken."""
        found: list[ReadBatch] = []
        while self.ready and least > 0:
            reader = self.ready[0]
            self.note(reader)
            try:
                records = reader.take_batch()
            except Exception:
                if found:
                    break  # it waits until those before it were handed out
                raise
            if records:
                found.append(
                    ReadBatch(TopicPartition(reader.topic, reader.partition), reader.header, records)
                )
                least -= len(records)
            if reader.is_done:
                self.finish(reader)
        return found

    @staticmethod
    def _take_after(reader: RecordReader, count: int) -> list[Record]:
        """More records behind others: an error among them waits until those were handed out."""
        try:
            return reader.take(count)
        except Exception:
            return []

    def finish(self, reader: RecordReader) -> None:
        """All of a reader's records were taken.

        A signal may end this anywhere. What is still the first of `ready` then is finished once more.
        """
        state: PartitionState = reader.owner
        if state.readers and state.readers[0] is reader:
            if reader.leader_epoch >= 0:
                state.position_epoch = reader.leader_epoch
            state.readers.popleft()
        if self.ready and self.ready[0] is reader:
            self.ready.popleft()
        self.has_room_again = True
        self._on_taken()
