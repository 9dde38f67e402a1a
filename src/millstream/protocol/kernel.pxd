# The C layout of the classes in kernel.py. Functions and locals are typed in kernel.py itself.

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Record:
    cdef readonly long long offset
    cdef readonly long long timestamp
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly tuple headers


@cython.final
cdef class Cursor:
    cdef const unsigned char[::1] data
    cdef const unsigned char* raw
    cdef Py_ssize_t position
    cdef Py_ssize_t end
    cdef long long timestamp_delta
    cdef long long offset_delta
    cdef Py_ssize_t key_start
    cdef Py_ssize_t key_length
    cdef Py_ssize_t value_start
    cdef Py_ssize_t value_length
    cdef Py_ssize_t headers_start
    cdef Py_ssize_t header_count
    cdef long long index
    cdef Py_ssize_t rows
    cdef Py_ssize_t key_bytes
    cdef Py_ssize_t value_bytes
    cdef Py_ssize_t null_keys
    cdef Py_ssize_t null_values
    cdef Py_ssize_t headers
    cdef long long min_timestamp
    cdef long long max_timestamp
    cdef long long max_timestamp_index


@cython.final
cdef class ColumnWriter:
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t headers
    cdef bint with_headers
    cdef long long[::1] offsets
    cdef long long[::1] timestamps
    cdef signed char[::1] timestamp_types
    cdef unsigned char[::1] key_data
    cdef int[::1] key_offsets
    cdef unsigned char[::1] key_validity
    cdef unsigned char[::1] value_data
    cdef int[::1] value_offsets
    cdef unsigned char[::1] value_validity
    cdef int[::1] header_offsets
    cdef unsigned char[::1] name_data
    cdef int[::1] name_offsets
    cdef unsigned char[::1] header_data
    cdef int[::1] header_data_offsets
    cdef unsigned char[::1] header_validity


@cython.final
cdef class Checksum:
    cdef unsigned int table[2048]


@cython.final
cdef class OpenTransactions:
    cdef long long* pairs
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef long long next_aborted


@cython.final
cdef class OffsetMap:
    cdef Checksum checksum
    cdef Cursor cursor
    cdef unsigned long long* words
    cdef readonly Py_ssize_t slots
    cdef Py_ssize_t used
    cdef Py_ssize_t limit
    cdef Py_ssize_t max_slots
    cdef double load_factor
    cdef readonly long long first_offset
    cdef readonly long long latest_offset
    cdef readonly long long next_offset
    cdef readonly int stop
    cdef unsigned long long secret_low
    cdef unsigned long long secret_high
    cdef unsigned long long digest_low
    cdef unsigned long long digest_high
    cdef bytes secret


@cython.final
cdef class BatchFilter:
    cdef OffsetMap map
    cdef OpenTransactions transactions
    cdef Cursor cursor
    cdef const long long[::1] kept_offsets
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
