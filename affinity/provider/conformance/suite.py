"""The whole contract in one class."""

from __future__ import annotations

from affinity.provider.conformance.batches import BatchRules
from affinity.provider.conformance.births import BirthRules
from affinity.provider.conformance.byte_limits import ByteLimitRules
from affinity.provider.conformance.capacity import CapacityRules
from affinity.provider.conformance.client import ClientRules
from affinity.provider.conformance.epochs import EpochRules
from affinity.provider.conformance.faults import FaultRules
from affinity.provider.conformance.give_back import GiveBackRules
from affinity.provider.conformance.hints import HintRules
from affinity.provider.conformance.holders import HolderRules
from affinity.provider.conformance.holds import HoldRules
from affinity.provider.conformance.ids import IdRules
from affinity.provider.conformance.listing import ListingRules
from affinity.provider.conformance.locks import LockRules
from affinity.provider.conformance.management import ManagementRules
from affinity.provider.conformance.origins import OriginRules
from affinity.provider.conformance.ownership import OwnershipRules
from affinity.provider.conformance.placing import PlacingRules
from affinity.provider.conformance.quotas import QuotaRules
from affinity.provider.conformance.releasing import ReleaseRules
from affinity.provider.conformance.resets import ResetRules
from affinity.provider.conformance.retention import RetentionRules
from affinity.provider.conformance.routing import RoutingRules
from affinity.provider.conformance.same_turn import SameTurnRules
from affinity.provider.conformance.state_batches import StateBatchRules
from affinity.provider.conformance.states import StateRules
from affinity.provider.conformance.suspension import SuspensionRules
from affinity.provider.conformance.sweeping import SweepRules
from affinity.provider.conformance.takeover import TakeoverRules
from affinity.provider.conformance.timelines import TimelineRules
from affinity.provider.conformance.touching import TouchRules
from affinity.provider.conformance.trees import TreeRules
from affinity.provider.conformance.turns import TurnRules
from affinity.provider.conformance.unknown import UnknownRules
from affinity.provider.conformance.watches import WatchRules
from affinity.provider.conformance.workers import WorkerRules


class ProviderConformance(
    WorkerRules,
    RoutingRules,
    TakeoverRules,
    TouchRules,
    LockRules,
    CapacityRules,
    ReleaseRules,
    GiveBackRules,
    UnknownRules,
    SweepRules,
    TurnRules,
    SameTurnRules,
    BirthRules,
    PlacingRules,
    OwnershipRules,
    SuspensionRules,
    TreeRules,
    RetentionRules,
    QuotaRules,
    ResetRules,
    ClientRules,
    ListingRules,
    OriginRules,
    ManagementRules,
    BatchRules,
    ByteLimitRules,
    IdRules,
    StateRules,
    StateBatchRules,
    EpochRules,
    HoldRules,
    HolderRules,
    WatchRules,
    TimelineRules,
    FaultRules,
    HintRules,
):
    """Every rule of `affinity.provider.contract`, as tests of a provider. Needs a fixture ``harness``."""
