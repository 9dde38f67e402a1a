# The C layout of the classes in consumer_kernel.py. Functions and locals are typed there.

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Record:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly long long offset
    cdef readonly long long timestamp_ms
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers


cdef class Cursor:
    cdef const unsigned char* raw
    cdef Py_ssize_t at
    cdef Py_ssize_t limit
    cdef bint is_bad


@cython.final
cdef class RecordReader(Cursor):
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly long long position
    cdef readonly int leader_epoch
    cdef readonly bint is_done
    cdef readonly object data
    cdef readonly object aborted
    cdef public object owner
    cdef readonly Py_ssize_t size_bytes
    cdef object key_of
    cdef object value_of
    cdef object batches
    cdef readonly object header
    cdef long long from_offset
    cdef const unsigned char[::1] payload
    cdef Py_ssize_t start
    cdef Py_ssize_t end
    cdef long long left
    cdef long long base_offset
    cdef long long next_offset
    cdef readonly long long end_offset
    cdef long long base_timestamp
    cdef bint has_log_time


@cython.final
cdef class PlainColumns(Cursor):
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t null_keys
    cdef readonly Py_ssize_t null_values
    cdef const unsigned char[::1] payload
    cdef long long[::1] offsets
    cdef long long[::1] timestamps
    cdef signed char[::1] timestamp_types
    cdef unsigned char[::1] key_data
    cdef int[::1] key_offsets
    cdef unsigned char[::1] key_validity
    cdef unsigned char[::1] value_data
    cdef int[::1] value_offsets
    cdef unsigned char[::1] value_validity
