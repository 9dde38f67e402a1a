# The C layout of the classes in client_kernel.py. Functions and locals are typed there.

cimport cython


@cython.final
cdef class BatchBuilder:
    cdef bytearray out
    cdef unsigned char* raw
    cdef Py_ssize_t capacity
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t limit
    cdef readonly long long count
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp


cdef class Place:
    cdef public object outcome
    cdef public long long index
    cdef public long long timestamp_ms


@cython.final
cdef class BinaryRows:
    cdef const unsigned char[::1] data
    cdef const int[::1] offsets
    cdef const unsigned char[::1] validity
    cdef bint has_nulls
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t rows
