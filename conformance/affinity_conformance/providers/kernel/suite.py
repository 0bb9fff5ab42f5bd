"""The whole contract in one class."""

from __future__ import annotations

from affinity.testing.conformance.providers.activity_waits import ActivityWaitRules
from affinity.testing.conformance.providers.audit import AuditRules
from affinity.testing.conformance.providers.batches import BatchRules
from affinity.testing.conformance.providers.blocked import BlockedRules
from affinity.testing.conformance.providers.byte_limits import ByteLimitRules
from affinity.testing.conformance.providers.capacity import CapacityRules
from affinity.testing.conformance.providers.client import ClientRules
from affinity.testing.conformance.providers.demand import DemandRules
from affinity.testing.conformance.providers.epochs import EpochRules
from affinity.testing.conformance.providers.faults import FaultRules
from affinity.testing.conformance.providers.generations import GenerationRules
from affinity.testing.conformance.providers.give_back import GiveBackRules
from affinity.testing.conformance.providers.hints import HintRules
from affinity.testing.conformance.providers.holders import HolderRules
from affinity.testing.conformance.providers.holds import HoldRules
from affinity.testing.conformance.providers.ids import IdRules
from affinity.testing.conformance.providers.journal_admin import JournalAdministrationRules
from affinity.testing.conformance.providers.journal_delegations import JournalDelegationRules
from affinity.testing.conformance.providers.journal_descriptions import JournalDescriptionRules
from affinity.testing.conformance.providers.journal_forks import JournalForkRules
from affinity.testing.conformance.providers.journal_reading import JournalReadingRules
from affinity.testing.conformance.providers.journal_requests import JournalRequestRules
from affinity.testing.conformance.providers.journal_steps import JournalStepRules
from affinity.testing.conformance.providers.journal_streams import JournalStreamRules
from affinity.testing.conformance.providers.journal_wakes import JournalWakeRules
from affinity.testing.conformance.providers.journal_writes import JournalWriteRules
from affinity.testing.conformance.providers.journals import JournalRules
from affinity.testing.conformance.providers.lineage import LineageRules
from affinity.testing.conformance.providers.listing import ListingRules
from affinity.testing.conformance.providers.load import LoadRules
from affinity.testing.conformance.providers.locks import LockRules
from affinity.testing.conformance.providers.management import ManagementRules
from affinity.testing.conformance.providers.mixed_batches import MixedBatchRules
from affinity.testing.conformance.providers.moves import MoveRules
from affinity.testing.conformance.providers.old_data import OldDataRules
from affinity.testing.conformance.providers.open_requests import OpenRequestRules
from affinity.testing.conformance.providers.ordering import OrderRules
from affinity.testing.conformance.providers.origins import OriginRules
from affinity.testing.conformance.providers.own_fetches import OwnFetchRules
from affinity.testing.conformance.providers.ownership import OwnershipRules
from affinity.testing.conformance.providers.parking import ParkingRules
from affinity.testing.conformance.providers.placing import PlacingRules
from affinity.testing.conformance.providers.planned_moves import OperatorDrainRules, PlannedMoveRules
from affinity.testing.conformance.providers.quotas import QuotaRules
from affinity.testing.conformance.providers.releasing import ReleaseRules
from affinity.testing.conformance.providers.replies import ReplyRules
from affinity.testing.conformance.providers.resets import ResetRules
from affinity.testing.conformance.providers.resources import ResourceRules
from affinity.testing.conformance.providers.restarts import RestartRules
from affinity.testing.conformance.providers.retention import RetentionRules
from affinity.testing.conformance.providers.rollouts import RolloutRules
from affinity.testing.conformance.providers.routing import RoutingRules
from affinity.testing.conformance.providers.same_turn import SameTurnRules
from affinity.testing.conformance.providers.schedules import ScheduleRules
from affinity.testing.conformance.providers.state_batches import StateBatchRules
from affinity.testing.conformance.providers.states import StateRules
from affinity.testing.conformance.providers.suspension import SuspensionRules
from affinity.testing.conformance.providers.sweeping import SweepRules
from affinity.testing.conformance.providers.tags import TagRules
from affinity.testing.conformance.providers.takeover import TakeoverRules
from affinity.testing.conformance.providers.timelines import TimelineRules
from affinity.testing.conformance.providers.touching import TouchRules
from affinity.testing.conformance.providers.trees import TreeRules
from affinity.testing.conformance.providers.turns import TurnRules
from affinity.testing.conformance.providers.unknown import UnknownRules
from affinity.testing.conformance.providers.waits import WaitRules
from affinity.testing.conformance.providers.watches import WatchRules
from affinity.testing.conformance.providers.workers import WorkerRules


class ProviderConformance(
    WorkerRules,
    RoutingRules,
    OwnFetchRules,
    TakeoverRules,
    RolloutRules,
    TagRules,
    WaitRules,
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
    RetentionRules,
    QuotaRules,
    ResetRules,
    ClientRules,
    ReplyRules,
    ListingRules,
    OriginRules,
    ManagementRules,
    AuditRules,
    BatchRules,
    ByteLimitRules,
    IdRules,
    StateRules,
    StateBatchRules,
    EpochRules,
    HoldRules,
    HolderRules,
    WatchRules,
    JournalRules,
    JournalRequestRules,
    JournalReadingRules,
    JournalWriteRules,
    JournalWakeRules,
    ParkingRules,
    JournalStepRules,
    JournalDelegationRules,
    JournalStreamRules,
    ActivityWaitRules,
    JournalAdministrationRules,
    JournalDescriptionRules,
    OldDataRules,
    OpenRequestRules,
    JournalForkRules,
    LineageRules,
    ResourceRules,
    ScheduleRules,
    TimelineRules,
    FaultRules,
    HintRules,
):
    """Every rule of `affinity.provider.contract`, as tests of a provider. Needs a fixture ``harness``."""
