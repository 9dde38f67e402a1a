# The C layout of the classes in kernel.py. Functions and locals are typed in kernel.py itself.

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class BatchHeader:
    cdef readonly long long base_offset
    cdef readonly long long size
    cdef readonly int leader_epoch
    cdef readonly int magic
    cdef readonly long long crc
    cdef readonly int attributes
    cdef readonly int last_offset_delta
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly long long producer_id
    cdef readonly int producer_epoch
    cdef readonly int base_sequence
    cdef readonly int count


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
@cython.no_gc
cdef class Scan:
    cdef readonly Py_ssize_t position
    cdef readonly int error
    cdef readonly long long batches
    cdef readonly long long first_offset
    cdef readonly long long last_offset
    cdef readonly long long max_timestamp
    cdef readonly long long max_timestamp_offset


@cython.final
@cython.no_gc
cdef class Walk:
    cdef readonly int error
    cdef readonly int index
    cdef readonly long long min_timestamp
    cdef readonly long long max_timestamp
    cdef readonly int max_timestamp_delta
    cdef readonly int null_key_index


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
