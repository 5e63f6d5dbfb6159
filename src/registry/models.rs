//! Models of what a lookup reads without a lock.

use super::{
    arena::Address,
    index::{Index, Tag},
    label::Label,
};
use crate::{
    key::Key,
    sync::{AtomicU64, Ordering},
};
use loom::{model, sync::Arc, thread};

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

#[test]
fn who_reads_a_label_while_it_changes_finds_an_owner_under_its_own_key_alone() {
    // Two words of text each: a half of the old one and a half of the new one are a key of their own.
    for (asked, allowed) in [
        ("aaaaaaaa11111111", Some(1)),
        ("bbbbbbbb22222222", Some(2)),
        ("aaaaaaaa22222222", None),
        ("bbbbbbbb11111111", None),
    ] {
        model(move || {
            let label = Arc::new(Label::blank());
            label.write(key("aaaaaaaa11111111").as_ref(), 1);
            let other = Arc::clone(&label);
            let writer = thread::spawn(move || {
                other.clear();
                other.write(key("bbbbbbbb22222222").as_ref(), 2);
            });
            let found = label.owner(key(asked).as_ref());
            assert!(found.is_none() || found == allowed, "{asked}: {found:?}");
            writer.join().unwrap();
            assert_eq!(label.owner(key(asked).as_ref()), allowed.filter(|owner| *owner == 2));
        });
    }
}

#[test]
fn who_found_an_owner_sees_all_that_was_written_before_it() {
    model(|| {
        let name = key("aaaaaaaa11111111");
        let label = Arc::new(Label::blank());
        let written = Arc::new(AtomicU64::new(0));
        let writer = {
            let (label, name, written) = (Arc::clone(&label), name.clone(), Arc::clone(&written));
            thread::spawn(move || {
                written.store(1, Ordering::Relaxed);
                label.write(name.as_ref(), 1);
            })
        };
        if label.owner(name.as_ref()).is_some() {
            assert_eq!(written.load(Ordering::Relaxed), 1);
        }
        writer.join().unwrap();
    });
}

/// Three keys whose search begins at the same cell.
const TAGS: [Tag; 3] = [Tag::of(1 << 32), Tag::of(65 << 32), Tag::of(129 << 32)];

const fn at(slot: u32) -> Address {
    Address::from_bits(slot)
}

// Of these two models the reader is the thread that is spawned: loom goes back to the last access of a cell
// alone, and a writer looks before it writes.

#[test]
fn a_search_meets_no_slot_that_was_not_put_there_while_cells_move() {
    for (tag, allowed) in [(TAGS[0], [at(0), at(3)]), (TAGS[2], [at(2), at(2)])] {
        model(move || {
            let index = Arc::new(Index::new());
            for (slot, tag) in (0..).zip(TAGS) {
                index.insert(tag, at(slot), slot);
            }
            let other = Arc::clone(&index);
            let reader = thread::spawn(move || other.find(tag, Some));
            index.remove(TAGS[0], at(0));
            index.insert(TAGS[0], at(3), 2);
            let seen = reader.join().unwrap();
            assert!(seen.is_none_or(|slot| allowed.contains(&slot)), "{seen:?}");
            assert_eq!(TAGS.map(|tag| index.find(tag, Some)), [3, 1, 2].map(|slot| Some(at(slot))));
        });
    }
}

#[test]
fn a_search_that_sees_a_larger_table_sees_what_was_moved_there() {
    model(|| {
        let index = Arc::new(Index::new());
        index.insert(TAGS[0], at(0), 0);
        let other = Arc::clone(&index);
        let reader = thread::spawn(move || other.find(TAGS[0], Some));
        // One more than fits the first table.
        index.insert(TAGS[1], at(1), 42);
        assert_eq!(reader.join().unwrap(), Some(at(0)), "it was there all along");
        assert_eq!(index.find(TAGS[1], Some), Some(at(1)));
    });
}
