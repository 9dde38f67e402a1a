# The C layout of the class in filter_kernel.py, and what it has from the other kernels.

cimport cython

from millstream.protocol.encode_kernel cimport put_varint, varint_size
from millstream.protocol.kernel cimport Cursor, advance, place, read_i32, read_i64
from millstream.protocol.kernel cimport varint_end, varlong_end, wrapping_sum, zigzag
from millstream.protocol.offset_map_kernel cimport OffsetMap, find_key
from millstream.protocol.walk_kernel cimport OpenTransactions, checksum_of, judge, meet


@cython.final
cdef class BatchFilter:
    cdef OffsetMap map
    cdef OpenTransactions transactions
    cdef Cursor cursor
    cdef const long long[::1] kept_offsets
    cdef const long long[::1] begun_offsets
    cdef long long upper_offset
    cdef long long now_ms
    cdef readonly long long horizon_ms
    cdef unsigned char[::1] out
    cdef readonly Py_ssize_t out_size
    cdef unsigned char[::1] scratch
    cdef unsigned char[::1] index_out
    cdef readonly Py_ssize_t index_size
    cdef unsigned char[::1] time_out
    cdef readonly Py_ssize_t time_size
    cdef long long base_offset
    cdef long long index_interval_bytes
    cdef long long unindexed_bytes
    cdef readonly Py_ssize_t size
    cdef readonly long long next_offset
    cdef readonly long long max_timestamp
    cdef readonly long long max_timestamp_offset
    cdef long long time_entry
    cdef long long time_entry_offset
    cdef readonly int stop
    cdef readonly long long kept
    cdef bint has_tombstones
    cdef readonly bint rebased
    cdef readonly long long largest
    cdef Py_ssize_t records_end
    cdef readonly long long batches_read
    cdef readonly long long records_read
    cdef readonly long long records_kept
