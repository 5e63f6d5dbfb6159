//! Models of [`BudgetCell`].

use crate::machine::{
    budget::{BudgetCell, BudgetRule},
    tick::Tick,
    trip::BILLION,
    window::BUCKETS,
};
use loom::{model, sync::Arc, thread};
use std::time::{Duration, Instant};

/// A budget without a floor that pays one retry for so many calls, over a second.
fn budget(calls_per_retry: u64) -> Arc<BudgetCell> {
    Arc::new(BudgetCell::new(BudgetRule {
        ratio: u64::from(BILLION) / calls_per_retry,
        min_per_second: 0,
        window: Duration::from_secs(1),
    }))
}

/// A time by the number of its bucket.
fn bucket(number: usize) -> Tick {
    let zero = Instant::now();
    Tick::at(zero + Duration::from_millis(100) * u32::try_from(number).unwrap(), zero)
}

/// Retries that are granted in a row.
fn granted(budget: &BudgetCell, generation: u64, now: Tick) -> usize {
    std::iter::repeat_with(|| budget.withdraw(generation, now))
        .take_while(|grant| *grant == Some(true))
        .count()
}

#[test]
fn no_deposit_is_lost() {
    model(|| {
        let budget = budget(1);
        let (owner, now) = (budget.generation(), bucket(1));
        let other = Arc::clone(&budget);
        let depositing = thread::spawn(move || other.deposit(owner, now));
        budget.deposit(owner, now);
        depositing.join().unwrap();
        assert_eq!(granted(&budget, owner, now), 2);
    });
}

#[test]
fn a_token_is_spent_once() {
    model(|| {
        let budget = budget(1);
        let (owner, now) = (budget.generation(), bucket(1));
        budget.deposit(owner, now);
        let other = Arc::clone(&budget);
        let first = thread::spawn(move || other.withdraw(owner, now) == Some(true));
        let second = budget.withdraw(owner, now) == Some(true);
        assert!(first.join().unwrap() ^ second);
    });
}

#[test]
fn of_two_calls_that_fail_together_the_last_to_ask_sees_both_also_across_a_tick() {
    model(|| {
        let budget = budget(2);
        let owner = budget.generation();
        let fail = move |budget: &BudgetCell, now| {
            budget.deposit(owner, now);
            budget.withdraw(owner, now) == Some(true)
        };
        let other = Arc::clone(&budget);
        let first = thread::spawn(move || fail(&other, bucket(1)));
        let second = fail(&budget, bucket(2));
        assert!(first.join().unwrap() ^ second, "one retry for two calls, exactly");
    });
}

#[test]
fn a_bucket_that_leaves_the_window_takes_its_deposits_and_its_withdrawals_along() {
    model(|| {
        let budget = budget(1);
        let owner = budget.generation();
        budget.deposit(owner, bucket(0));
        assert_eq!(granted(&budget, owner, bucket(0)), 1);
        let other = Arc::clone(&budget);
        // One read the clock just before the bucket left, one just after.
        let before = thread::spawn(move || granted(&other, owner, bucket(BUCKETS - 1)));
        let after = granted(&budget, owner, bucket(BUCKETS));
        assert_eq!(before.join().unwrap() + after, 0);
    });
}

#[test]
fn a_deposit_from_a_window_ago_is_not_mixed_with_those_of_now() {
    model(|| {
        let budget = budget(1);
        let owner = budget.generation();
        let (then, now) = (bucket(1), bucket(1 + BUCKETS));
        let other = Arc::clone(&budget);
        let late = thread::spawn(move || other.deposit(owner, then));
        budget.deposit(owner, now);
        late.join().unwrap();
        assert_eq!(granted(&budget, owner, now), 1);
    });
}

#[test]
fn a_deposit_for_the_old_owner_never_funds_the_new_one() {
    model(|| {
        let budget = budget(1);
        let (owner, now) = (budget.generation(), bucket(1));
        let other = Arc::clone(&budget);
        let late = thread::spawn(move || other.deposit(owner, now));
        if budget.evict(now).is_some() {
            let newcomer = budget.generation();
            late.join().unwrap();
            assert_eq!(budget.withdraw(owner, now), None, "gone");
            assert_eq!(granted(&budget, newcomer, now), 0);
        } else {
            late.join().unwrap();
            assert_eq!(granted(&budget, owner, now), 1);
        }
    });
}

#[test]
fn a_budget_that_was_spent_from_is_not_forgotten() {
    model(|| {
        let budget = budget(1);
        let (owner, now) = (budget.generation(), bucket(1));
        budget.deposit(owner, now);
        let other = Arc::clone(&budget);
        let spending = thread::spawn(move || other.withdraw(owner, now));
        assert!(budget.evict(now).is_none());
        assert_eq!(spending.join().unwrap(), Some(true));
    });
}
