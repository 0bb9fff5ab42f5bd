"""The kernel's contract in one class."""

from __future__ import annotations

from affinity_conformance.providers.kernel.activity_waits import ActivityWaitRules
from affinity_conformance.providers.kernel.batches import BatchRules
from affinity_conformance.providers.kernel.blocked import BlockedRules
from affinity_conformance.providers.kernel.byte_limits import ByteLimitRules
from affinity_conformance.providers.kernel.capacity import CapacityRules
from affinity_conformance.providers.kernel.client import ClientRules
from affinity_conformance.providers.kernel.demand import DemandRules
from affinity_conformance.providers.kernel.epochs import EpochRules
from affinity_conformance.providers.kernel.failures import FailureRules
from affinity_conformance.providers.kernel.faults import FaultRules
from affinity_conformance.providers.kernel.generations import GenerationRules
from affinity_conformance.providers.kernel.give_back import GiveBackRules
from affinity_conformance.providers.kernel.hints import HintRules
from affinity_conformance.providers.kernel.holders import HolderRules
from affinity_conformance.providers.kernel.holds import HoldRules
from affinity_conformance.providers.kernel.ids import IdRules
from affinity_conformance.providers.kernel.labels import LabelRules
from affinity_conformance.providers.kernel.listing import ListingRules
from affinity_conformance.providers.kernel.load import LoadRules
from affinity_conformance.providers.kernel.locks import LockRules
from affinity_conformance.providers.kernel.management import ManagementRules
from affinity_conformance.providers.kernel.mixed_batches import MixedBatchRules
from affinity_conformance.providers.kernel.moves import MoveRules
from affinity_conformance.providers.kernel.ordering import OrderRules
from affinity_conformance.providers.kernel.origins import OriginRules
from affinity_conformance.providers.kernel.own_fetches import OwnFetchRules
from affinity_conformance.providers.kernel.ownership import OwnershipRules
from affinity_conformance.providers.kernel.placing import PlacingRules
from affinity_conformance.providers.kernel.planned_moves import OperatorDrainRules, PlannedMoveRules
from affinity_conformance.providers.kernel.quotas import QuotaRules
from affinity_conformance.providers.kernel.releasing import ReleaseRules
from affinity_conformance.providers.kernel.replies import ReplyRules
from affinity_conformance.providers.kernel.resets import ResetRules
from affinity_conformance.providers.kernel.resources import ResourceRules
from affinity_conformance.providers.kernel.restarts import RestartRules
from affinity_conformance.providers.kernel.retention import RetentionRules
from affinity_conformance.providers.kernel.rollouts import RolloutRules
from affinity_conformance.providers.kernel.routing import RoutingRules
from affinity_conformance.providers.kernel.same_turn import SameTurnRules
from affinity_conformance.providers.kernel.starts import StartRules
from affinity_conformance.providers.kernel.state_batches import StateBatchRules
from affinity_conformance.providers.kernel.states import StateRules
from affinity_conformance.providers.kernel.suspension import SuspensionRules
from affinity_conformance.providers.kernel.sweeping import SweepRules
from affinity_conformance.providers.kernel.tags import TagRules
from affinity_conformance.providers.kernel.takeover import TakeoverRules
from affinity_conformance.providers.kernel.timelines import TimelineRules
from affinity_conformance.providers.kernel.touching import TouchRules
from affinity_conformance.providers.kernel.trees import TreeRules
from affinity_conformance.providers.kernel.turns import TurnRules
from affinity_conformance.providers.kernel.unknown import UnknownRules
from affinity_conformance.providers.kernel.values import ValueRules
from affinity_conformance.providers.kernel.waits import WaitRules
from affinity_conformance.providers.kernel.watches import WatchRules
from affinity_conformance.providers.kernel.workers import WorkerRules


class KernelConformance(
    WorkerRules,
    RoutingRules,
    OwnFetchRules,
    TakeoverRules,
    RolloutRules,
    TagRules,
    WaitRules,
    ActivityWaitRules,
    TouchRules,
    LockRules,
    CapacityRules,
    DemandRules,
    LoadRules,
    ReleaseRules,
    MoveRules,
    PlannedMoveRules,
    OperatorDrainRules,
    GiveBackRules,
    FailureRules,
    UnknownRules,
    SweepRules,
    BlockedRules,
    TurnRules,
    SameTurnRules,
    GenerationRules,
    PlacingRules,
    OrderRules,
    MixedBatchRules,
    OwnershipRules,
    SuspensionRules,
    TreeRules,
    RestartRules,
    LabelRules,
    StartRules,
    RetentionRules,
    QuotaRules,
    ResetRules,
    ClientRules,
    ReplyRules,
    ValueRules,
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
    ResourceRules,
    TimelineRules,
    FaultRules,
    HintRules,
):
    """The rules of the kernel, as tests of a provider. Needs a fixture ``harness``."""
