//! Key to resident: the only file that names the index and, below it, the arena.
//!
//! Residents (circuits, budgets, what was said of an origin) live in slots that never move. An index leads from
//! the hash of a borrowed key to the slots that may have it, and the slot says whether it has. So a call on its
//! way holds a plain reference: no count is kept, no lock taken, nothing shared written.
//!
//! At capacity a newcomer is given the slot of a resident that can be spared. Its tenancy ends there: whoever
//! still holds the old one is told by the resident, which knows whose it is (see
//! [`CircuitCell`](crate::machine::cell::CircuitCell)).

mod arena;
mod index;
mod label;
#[cfg(all(test, reqwest_resilience_loom))]
mod models;

use crate::{
    key::{Key, KeyRef},
    machine::Expendable,
    sync::{Mutex, lock},
};
use arena::{Address, Arena};
use foldhash::fast::RandomState;
use index::{Index, Tag};
use label::Label;
use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

/// At how many slots a newcomer looks for one to take over.
const LOOKS: u32 = 64;

/// What lives in the slots of a registry.
pub(crate) trait Resident {
    /// What decisions about residents are told.
    type Context<'a>;
    /// What is left to say of an evicted one.
    type Farewell;

    /// The empty place of this number.
    fn vacant(number: u32, context: &Self::Context<'_>) -> Self;

    /// How gladly it is given up; none: not at all.
    fn expendable(&self, context: &Self::Context<'_>) -> Option<Expendable>;

    /// Ends the tenancy if it can still be given up as gladly as `at_most`. From then on nobody is served
    /// here.
    fn evict(&self, at_most: Expendable, context: &Self::Context<'_>) -> Option<Self::Farewell>;

    /// Begins a tenancy in the vacant place and says its number: above zero, and never given in it before.
    fn occupy(&self, key: &Key, context: &Self::Context<'_>) -> u64;
}

/// A resident, as found under a key.
pub(crate) struct Found<'r, R: Resident> {
    pub(crate) resident: &'r R,
    /// Whose the resident was then.
    pub(crate) tenancy: u64,
}

// Not derived: that would ask the same of `R`.
impl<R: Resident> Clone for Found<'_, R> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Resident> Copy for Found<'_, R> {}

/// A newcomer's place, and what is left to say of its predecessor.
pub(crate) struct Arrival<'r, R: Resident> {
    /// None: no slot could be spared.
    pub(crate) found: Option<Found<'r, R>>,
    pub(crate) farewell: Option<R::Farewell>,
}

/// What to do with a newcomer when all slots are taken and none can be spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    TurnAway,
    Grow,
}

pub(crate) struct Registry<R: Resident> {
    hasher: RandomState,
    index: Index,
    slots: Arena<Slot<R>>,
    capacity: usize,
    desk: Mutex<Desk>,
}

/// Aligned to a cache line, so that a busy neighbour slows nobody down. What a lookup reads comes first.
#[repr(C, align(64))]
struct Slot<R> {
    label: Label,
    /// Second chance: used since the clock hand last came by. Written only when clear.
    used: AtomicBool,
    /// How the owner is found in the index; for the desk alone.
    tag: AtomicU32,
    resident: R,
    /// The text of the owner's key; for the desk alone.
    text: Mutex<Option<Arc<str>>>,
}

/// Where newcomers queue: all creations and evictions happen under this lock, one at a time.
struct Desk {
    /// How many slots were ever occupied; outside this lock they all are.
    occupied: u32,
    /// The clock hand: where the next look for a slot to spare begins.
    hand: u32,
}

impl<R: Resident> Registry<R> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            hasher: RandomState::default(),
            index: Index::new(),
            slots: Arena::new(),
            capacity,
            desk: Mutex::new(Desk { occupied: 0, hand: 0 }),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The resident under `key`, for use. Takes no lock; writes at most the mark that it was used. One that
    /// comes or goes meanwhile may be missed: ask [`find_or_create`](Self::find_or_create) then.
    #[inline]
    pub(crate) fn find(&self, key: KeyRef<'_>) -> Option<Found<'_, R>> {
        let (slot, found) = self.locate(key)?;
        slot.mark();
        Some(found)
    }

    /// The resident under `key`, for a look that is no use.
    pub(crate) fn look_up(&self, key: KeyRef<'_>) -> Option<Found<'_, R>> {
        let found = self.locate(key).or_else(|| {
            let _desk = lock(&self.desk);
            self.locate_at_the_desk(key)
        });
        found.map(|(_, found)| found)
    }

    #[inline]
    fn locate(&self, key: KeyRef<'_>) -> Option<(&Slot<R>, Found<'_, R>)> {
        self.index.find(self.tag(key), |address| {
            let slot = self.slots.get(address)?;
            let tenancy = slot.label.owner(key)?;
            Some((slot, Found { resident: &slot.resident, tenancy }))
        })
    }

    /// The same, at the desk: misses nobody, and finds those whose key fits no label.
    fn locate_at_the_desk(&self, key: KeyRef<'_>) -> Option<(&Slot<R>, Found<'_, R>)> {
        self.index.find(self.tag(key), |address| {
            let slot = self.slots.get(address)?;
            let text = lock(&slot.text);
            let is_it = text.as_ref().is_some_and(|text| key.is_written(text));
            is_it.then(|| (slot, Found { resident: &slot.resident, tenancy: slot.label.tenancy() }))
        })
    }

    #[allow(clippy::manual_hash_one, reason = "a call of its own, to which the key would go through memory")]
    #[inline]
    fn tag(&self, key: KeyRef<'_>) -> Tag {
        let mut hasher = self.hasher.build_hasher();
        key.hash(&mut hasher);
        Tag::of(hasher.finish())
    }

    /// The resident under `key`, made where there is none. Waits for other newcomers, so what it finds is
    /// settled.
    pub(crate) fn find_or_create(
        &self,
        key: KeyRef<'_>,
        when_full: WhenFull,
        context: &R::Context<'_>,
    ) -> Arrival<'_, R> {
        let mut desk = lock(&self.desk);
        if let Some((slot, found)) = self.locate_at_the_desk(key) {
            slot.mark();
            return Arrival { found: Some(found), farewell: None };
        }
        let Some((address, farewell)) = self.free_slot(&mut desk, when_full, context) else {
            return Arrival { found: None, farewell: None };
        };
        Arrival { found: self.move_in(&mut desk, address, &key.to_key(), context), farewell }
    }

    /// Who lives in the place of this number, whoever that is by now.
    pub(crate) fn resident(&self, number: u32) -> Option<&R> {
        self.slots.get(Address::from_bits(number)).map(|slot| &slot.resident)
    }

    /// Visits all residents. Nobody comes or goes meanwhile.
    pub(crate) fn each(&self, mut visit: impl FnMut(&R)) {
        let desk = lock(&self.desk);
        let slots = (0..desk.occupied).filter_map(|index| self.slots.get(Address::of(index)?));
        slots.for_each(|slot| visit(&slot.resident));
    }

    /// A vacant slot: a new one below capacity, else one that could be spared.
    fn free_slot(
        &self,
        desk: &mut Desk,
        when_full: WhenFull,
        context: &R::Context<'_>,
    ) -> Option<(Address, Option<R::Farewell>)> {
        let may_grow = (desk.occupied as usize) < self.capacity;
        let spared = if may_grow { None } else { self.spare(desk, context) };
        if let Some((address, farewell)) = spared {
            return Some((address, Some(farewell)));
        }
        let next = Address::of(desk.occupied).filter(|_| may_grow || when_full == WhenFull::Grow)?;
        desk.occupied += 1;
        Some((next, None))
    }

    /// Evicts the best of the next slots under the clock hand that were not used lately.
    fn spare(&self, desk: &mut Desk, context: &R::Context<'_>) -> Option<(Address, R::Farewell)> {
        let mut best: Option<(Expendable, Address, &Slot<R>)> = None;
        for _ in 0..LOOKS.min(desk.occupied) {
            let address = Address::of(desk.hand)?;
            desk.hand = (desk.hand + 1) % desk.occupied;
            let slot = self.slots.get(address)?;
            if slot.used.swap(false, Ordering::Relaxed) {
                continue;
            }
            match slot.resident.expendable(context) {
                Some(Expendable::Fresh) => {
                    if let Some(farewell) = self.evict(address, slot, Expendable::Fresh, context) {
                        return Some((address, farewell));
                    }
                }
                Some(expendable) if best.is_none_or(|(least, ..)| expendable < least) => {
                    best = Some((expendable, address, slot));
                }
                _ => {}
            }
        }
        let (expendable, address, slot) = best?;
        let farewell = self.evict(address, slot, expendable, context)?;
        Some((address, farewell))
    }

    fn evict(
        &self,
        address: Address,
        slot: &Slot<R>,
        at_most: Expendable,
        context: &R::Context<'_>,
    ) -> Option<R::Farewell> {
        let farewell = slot.resident.evict(at_most, context)?;
        slot.label.clear();
        *lock(&slot.text) = None;
        self.index.remove(Tag::from_bits(slot.tag.load(Ordering::Relaxed)), address);
        Some(farewell)
    }

    fn move_in(
        &self,
        desk: &mut Desk,
        address: Address,
        key: &Key,
        context: &R::Context<'_>,
    ) -> Option<Found<'_, R>> {
        let slot = self.slots.get_or_make(address, |address| Slot {
            label: Label::blank(),
            used: AtomicBool::new(false),
            tag: AtomicU32::new(0),
            resident: R::vacant(address.bits(), context),
            text: Mutex::new(None),
        })?;
        let tag = self.tag(key.as_ref());
        let tenancy = slot.resident.occupy(key, context);
        slot.label.write(key.as_ref(), tenancy);
        slot.tag.store(tag.bits(), Ordering::Relaxed);
        *lock(&slot.text) = Some(Arc::clone(key.text()));
        self.index.insert(tag, address, desk.occupied.saturating_sub(1));
        Some(Found { resident: &slot.resident, tenancy })
    }
}

impl<R> Slot<R> {
    #[inline]
    fn mark(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

impl<R: Resident> fmt::Debug for Registry<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}
