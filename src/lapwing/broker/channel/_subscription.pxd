# The types of `subscription.py` where it is compiled.

from lapwing.broker.channel._ledger cimport Holder as HolderType


cdef class Subscription:
    cdef public HolderType holder
    cdef public object timeout, client, hang_up
    cdef public int sample_rate, locality, withheld
    cdef public bint headers, default_timeout, heartbeats
    cdef public Py_ssize_t size, unsent
    cdef object _send


cdef class Window(Subscription):
    pass


cdef class Credit(Subscription):
    cdef public Py_ssize_t left
