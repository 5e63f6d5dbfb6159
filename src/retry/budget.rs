//! The bound on retries, as users set it.

use crate::{
    clock::{Clock, TokioClock},
    error::ConfigError,
    key::{Key, KeyRef, Sort},
    machine::{
        Expendable,
        budget::{BudgetCell, BudgetRule, SHORTEST_WINDOW},
        tick::Tick,
        trip::BILLION,
    },
    registry::{Found, Registry, Resident, WhenFull},
    scope::{Keying, Scope},
};
use reqwest::Request;
use std::{fmt, sync::Arc, time::Duration};

/// Bounds retries to a share of the calls, so that an outage is not met with a multiple of its traffic.
///
/// Finagle's contract. A call deposits when its first attempt came back from the network; a retry withdraws
/// before its wait. In a window of `calls` calls there are at most
///
/// ```text
/// floor(calls * ratio) + min_per_second * window
/// ```
///
/// retries, exactly, for every ratio and under any concurrency; what is older than the window, in steps of a
/// tenth, no longer counts. In windows of a second and more, calls are dated by the clock's
/// [`recent`](Clock::recent) time, which may be a few milliseconds early. A call that was rejected funds nothing, so a long outage behind an open circuit
/// leaves no credit for a storm when it ends. By default a fifth of the calls, and 10 a second for those who
/// call little, over 10 seconds, for each origin.
///
/// When the budget has no token left, the caller gets what the last attempt brought, so a breaker outside
/// sees it too.
///
/// # Clone
///
/// A clone shares everything. Give one to several [`Retry`](crate::Retry)s to bound them together. Where one
/// is inside the other, both pay in for a call; what the outer sends again pays nothing.
///
/// # Example
///
/// ```
/// use reqwest_resilience::{Retry, RetryBudget};
/// use std::time::Duration;
///
/// let budget = RetryBudget::builder().ratio(0.1).min_per_second(1).window(Duration::from_secs(30)).build()?;
/// let retry = Retry::builder().budget(budget).build()?;
/// # Ok::<(), reqwest_resilience::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RetryBudget(Option<Arc<Accounts>>);

pub(super) struct Accounts {
    keying: Keying,
    budgets: Registry<BudgetCell>,
    rule: BudgetRule,
    clock: Arc<dyn Clock>,
    zero: std::time::Instant,
}

/// The account that a call pays into; none where the budget is unlimited, or the call has no key.
pub(super) enum Account<'a> {
    Unlimited,
    /// Every account is in use by somebody else.
    Full,
    Open(&'a Accounts, Found<'a, BudgetCell>),
}

impl RetryBudget {
    /// Begins the settings of a budget.
    pub fn builder() -> RetryBudgetBuilder {
        RetryBudgetBuilder::default()
    }

    /// No bound but the number of attempts. Retries then multiply the load of an outage.
    #[must_use]
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// The account of `request`. Made on its first call, so that a deposit finds it.
    #[inline]
    pub(super) fn account(&self, request: &Request) -> Account<'_> {
        let Some(accounts) = &self.0 else {
            return Account::Unlimited;
        };
        let mut made = None;
        let found = accounts.keying.key(request, &mut made).map(|key| accounts.find(key));
        match found {
            None => Account::Unlimited,
            Some(None) => Account::Full,
            Some(Some(found)) => Account::Open(accounts, found),
        }
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        RetryBudgetBuilder::default().assemble(Keying::Origin, BudgetRule::default())
    }
}

impl Account<'_> {
    /// A call was sent.
    #[inline]
    pub(super) fn deposit(&self) {
        if let Self::Open(accounts, found) = self {
            found.resident.deposit(found.tenancy, accounts.recently());
        }
    }

    /// Whether a retry may be made. An account that went to another key while the call was out has forgotten
    /// it, and grants nothing.
    pub(super) fn withdraw(&self) -> bool {
        match self {
            Self::Unlimited => true,
            Self::Full => false,
            Self::Open(accounts, found) => {
                found.resident.withdraw(found.tenancy, accounts.now()).unwrap_or(false)
            }
        }
    }
}

impl Accounts {
    #[inline]
    fn find(&self, key: KeyRef<'_>) -> Option<Found<'_, BudgetCell>> {
        self.budgets.find(key).or_else(|| self.find_or_create(key.sort, key.text))
    }

    #[cold]
    fn find_or_create(&self, sort: Sort, text: &str) -> Option<Found<'_, BudgetCell>> {
        let context = (self.rule, self.now());
        self.budgets.find_or_create(KeyRef { sort, text }, WhenFull::TurnAway, &context).found
    }

    fn now(&self) -> Tick {
        Tick::at(self.clock.now(), self.zero)
    }

    /// The time of a deposit, which every call makes. In a short window a clock that lags would lose some.
    fn recently(&self) -> Tick {
        let is_long = LONG_WINDOW <= self.rule.window;
        Tick::at(if is_long { self.clock.recent() } else { self.clock.now() }, self.zero)
    }
}

/// Of this a tenth, by which the window moves, is more than any clock should lag.
const LONG_WINDOW: Duration = Duration::from_secs(1);

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts")
            .field("keying", &self.keying)
            .field("budgets", &self.budgets)
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}

impl Resident for BudgetCell {
    type Context<'a> = (BudgetRule, Tick);
    type Farewell = ();

    fn vacant(_: u32, &(rule, _): &Self::Context<'_>) -> Self {
        Self::new(rule)
    }

    fn expendable(&self, (_, now): &Self::Context<'_>) -> Option<Expendable> {
        self.expendable(*now)
    }

    fn evict(&self, _: Expendable, (_, now): &Self::Context<'_>) -> Option<()> {
        self.evict(*now)
    }

    fn occupy(&self, _: &Key, _: &Self::Context<'_>) -> u64 {
        self.generation()
    }
}

/// Makes a [`RetryBudget`]; from [`RetryBudget::builder`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct RetryBudgetBuilder {
    ratio: Option<f64>,
    min_per_second: Option<u32>,
    window: Option<Duration>,
    scope: Scope,
    max_keys: usize,
    clock: Arc<dyn Clock>,
}

/// A ratio beyond this is no bound.
const MAX_RATIO: f64 = 1_000_000.0;

impl Default for RetryBudgetBuilder {
    fn default() -> Self {
        Self {
            ratio: None,
            min_per_second: None,
            window: None,
            scope: Scope::Origin,
            max_keys: 10_000,
            clock: Arc::new(TokioClock),
        }
    }
}

impl RetryBudgetBuilder {
    /// Retries per call: 0.2 by default, from 0 to 1,000,000. Taken as the nearest decimal of nine places. 0:
    /// the floor alone.
    pub fn ratio(mut self, ratio: f64) -> Self {
        self.ratio = Some(ratio);
        self
    }

    /// Retries a second that need no calls to pay for them: 10 by default. What a second does not use is
    /// there for the rest of the window.
    pub fn min_per_second(mut self, min_per_second: u32) -> Self {
        self.min_per_second = Some(min_per_second);
        self
    }

    /// How far back calls and retries count: at least 10 milliseconds, 10 seconds by default.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// What has a budget of its own: [`Scope::Origin`] by default, so that one origin cannot spend what
    /// another one needs. A request without a key is not bounded.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// The most budgets kept, at least 1: 10,000 by default. One takes some 480 bytes (a longer host
    /// more, as in [`max_circuits`](crate::CircuitBreakerBuilder::max_circuits)). When they are all taken, a new
    /// key is given that of one with nothing in its window; where there is none, its calls are not retried.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// Where the budget reads the time: [`TokioClock`] by default.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Checks the settings and makes the budget.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first value that cannot be.
    pub fn build(mut self) -> Result<RetryBudget, ConfigError> {
        let default = BudgetRule::default();
        let rule = BudgetRule {
            ratio: self.ratio.map_or(Ok(default.ratio), checked_ratio)?,
            min_per_second: self.min_per_second.unwrap_or(default.min_per_second),
            window: self.window.unwrap_or(default.window),
        };
        if rule.window < SHORTEST_WINDOW {
            let rule_text = format!("must not be shorter than {SHORTEST_WINDOW:?}");
            return Err(ConfigError::new("window", format!("{:?}", rule.window), rule_text));
        }
        if self.max_keys == 0 {
            return Err(ConfigError::new("max_keys", 0, "must be at least 1"));
        }
        let keying = std::mem::take(&mut self.scope).check()?;
        Ok(self.assemble(keying, rule))
    }

    fn assemble(self, keying: Keying, rule: BudgetRule) -> RetryBudget {
        RetryBudget(Some(Arc::new(Accounts {
            keying,
            budgets: Registry::new(self.max_keys),
            rule,
            zero: self.clock.now(),
            clock: self.clock,
        })))
    }
}

impl fmt::Debug for RetryBudgetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBudgetBuilder")
            .field("ratio", &self.ratio)
            .field("min_per_second", &self.min_per_second)
            .field("window", &self.window)
            .field("scope", &self.scope)
            .field("max_keys", &self.max_keys)
            .finish_non_exhaustive()
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 10^15, as checked")]
fn checked_ratio(ratio: f64) -> Result<u64, ConfigError> {
    if (0.0..=MAX_RATIO).contains(&ratio) {
        return Ok((ratio * f64::from(BILLION)).round() as u64);
    }
    Err(ConfigError::new("ratio", ratio, "must be between 0 and 1000000"))
}
