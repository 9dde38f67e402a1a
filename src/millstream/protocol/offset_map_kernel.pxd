# The C layout of the class in offset_map_kernel.py, and what it has from the other kernels and for them.

cimport cython

from millstream.protocol.kernel cimport Cursor, advance, place, read_i32, read_i64
from millstream.protocol.walk_kernel cimport Checksum, OpenTransactions, judge, meet


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


cdef long long find_key(OffsetMap m, const unsigned char* raw, Py_ssize_t start, Py_ssize_t size) noexcept nogil
