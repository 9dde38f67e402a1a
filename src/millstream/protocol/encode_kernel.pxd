# What encode_kernel.py has from the other kernels, and for them.

from millstream.protocol.kernel cimport Record


cdef int varint_size(long long value) noexcept nogil
cdef Py_ssize_t put_varint(unsigned char* raw, Py_ssize_t p, long long value) noexcept nogil
