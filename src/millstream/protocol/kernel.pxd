# The C layout of the classes in kernel.py. Functions and locals are typed in kernel.py itself;
# those named here are called by other kernels too.

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


cdef void place(Cursor c, object payload, Py_ssize_t start, Py_ssize_t end) except *
cdef bint advance(Cursor c) noexcept nogil
cdef int read_i16(const unsigned char* raw, Py_ssize_t p) noexcept nogil
cdef long long read_u32(const unsigned char* raw, Py_ssize_t p) noexcept nogil
cdef long long read_i32(const unsigned char* raw, Py_ssize_t p) noexcept nogil
cdef long long read_i64(const unsigned char* raw, Py_ssize_t p) noexcept nogil
cdef long long wrapping_sum(long long left, long long right) noexcept nogil
cdef Py_ssize_t varint_end(const unsigned char* raw, Py_ssize_t p, Py_ssize_t end) noexcept nogil
cdef Py_ssize_t varlong_end(const unsigned char* raw, Py_ssize_t p, Py_ssize_t end) noexcept nogil
cdef long long zigzag(const unsigned char* raw, Py_ssize_t p, Py_ssize_t stop) noexcept nogil
