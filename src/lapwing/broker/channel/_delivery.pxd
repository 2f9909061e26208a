# The types of `delivery.py` where it is compiled.

from lapwing.broker.channel._keys cimport Keys as KeysType
from lapwing.broker.channel._ledger cimport Holder as HolderType, Ledger as LedgerType, Ready as ReadyType
from lapwing.broker.channel._subscription cimport Subscription as SubscriptionType

cpdef Py_ssize_t depth_of(channel) except? -1
cdef _delivered(channel)
cdef list _with_room(channel, Py_ssize_t waiting)
cdef list _in_turn(channel, list ready)
cdef _give(channel, SubscriptionType subscription, Py_ssize_t count, now)
cdef Py_ssize_t _deliver_fresh(channel, SubscriptionType subscription, stop, Py_ssize_t count, now) except -1
cdef Py_ssize_t _deliver_alone(channel, Py_ssize_t most, now) except -1
cdef Py_ssize_t _redeliver_run(channel, SubscriptionType subscription, Py_ssize_t count, now) except -1
cdef bint _looked_at_one_by_one(channel, SubscriptionType subscription) except -1
cdef _deliver_by_key(channel, list ready, Py_ssize_t count, now)
cdef tuple _give_by_key(
    channel, KeysType keys, SubscriptionType subscription, Py_ssize_t count, Py_ssize_t budget, now
)
cdef _send_picked(channel, KeysType keys, SubscriptionType subscription, list sequences, bytes frames, now)
cdef Py_ssize_t _redeliver(channel, sequence, SubscriptionType subscription, now) except -1
