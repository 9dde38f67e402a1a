# The C layout of the classes in walk_kernel.py, and what it has from the other kernels and for them.

cimport cython

from millstream.protocol.kernel cimport Cursor, advance, read_i16, read_i32, read_i64, read_u32


@cython.final
cdef class Checksum:
    cdef unsigned int table[2048]


@cython.final
cdef class OpenTransactions:
    cdef long long* pairs
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef long long next_aborted


cdef unsigned int checksum_of(Checksum checksum, const unsigned char* raw, Py_ssize_t p, Py_ssize_t end) noexcept nogil
cdef int judge(Checksum checksum, const unsigned char* raw, Py_ssize_t p, Py_ssize_t end, long long next_offset) noexcept nogil
cdef int meet(OpenTransactions t, Cursor c, Py_ssize_t p, Py_ssize_t following, long long now_ms) noexcept nogil
