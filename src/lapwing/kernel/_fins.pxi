# Runs of FINs: shared by the compiled modules.

cdef enum:
    FIN = 21  # bytes of `FIN <id>` and a line feed


cdef inline Py_ssize_t fins_size(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Return how many bytes at `p` are whole FINs in ordinary form, back to back."""
    cdef Py_ssize_t at = 0
    while (
        size - at >= FIN
        and p[at] == 70 and p[at + 1] == 73 and p[at + 2] == 78 and p[at + 3] == 32
        and p[at + 20] == 10 and p[at + 19] != 13
        and memchr(p + at + 4, 10, 16) == NULL
        and memchr(p + at + 4, 32, 16) == NULL
    ):
        at += FIN
    return at
