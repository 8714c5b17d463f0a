"""DOES a store judge wrong clocks and lost writes as keepstate's own stores do? Mixins for its contract.

Put them before `StoreContract`, like the abilities of `keepstate.testing.store_contract`. A backend of yours
needs them only if it implements `last_leap` or `losses` itself. API boundary.
"""

from keepstate_testing.store_abilities.leaps import ConfirmsLeaps as ConfirmsLeaps
from keepstate_testing.store_abilities.leaps import ConfirmsServersClock as ConfirmsServersClock
from keepstate_testing.store_abilities.leaps import KeepsLeaps as KeepsLeaps
from keepstate_testing.store_abilities.losses import NoticesLostFloors as NoticesLostFloors

__all__ = ["ConfirmsLeaps", "ConfirmsServersClock", "KeepsLeaps", "NoticesLostFloors"]
