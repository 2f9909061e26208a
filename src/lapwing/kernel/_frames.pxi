# Heads of frames: shared by the compiled modules.

cdef const char *DIGITS = b"0123456789abcdef"


cdef inline uint32_t get32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]


cdef inline void put32(uint8_t *p, uint32_t value) noexcept nogil:
    p[0] = value >> 24
    p[1] = (value >> 16) & 255
    p[2] = (value >> 8) & 255
    p[3] = value & 255


cdef inline void put_head(uint8_t *p, uint32_t size, uint64_t timestamp, uint64_t identity) noexcept nogil:
    cdef int place
    put32(p, size + 30)
    put32(p + 4, 2)  # a frame with a message
    put32(p + 8, <uint32_t>(timestamp >> 32))
    put32(p + 12, <uint32_t>timestamp)
    p[16] = 0
    p[17] = 1
    for place in range(15, -1, -1):
        p[18 + place] = DIGITS[identity & 15]
        identity >>= 4
