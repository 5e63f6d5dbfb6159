//! Lines with the time in front, the log's among them; colours where a person looks at them.

use std::{
    fmt,
    io::{IsTerminal, stdout},
    sync::LazyLock,
    time::Instant,
};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    field::MakeExt,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Writer, debug_fn},
    },
    registry::LookupSpan,
};

/// Begins the timeline. From now on log events are lines of it.
pub(crate) fn start() -> Stopwatch {
    let stopwatch = Stopwatch(Instant::now());
    let fields = debug_fn(|line, field, value| {
        let value = format!("{value:?}");
        let value = value.trim_matches('"');
        match field.name() {
            "event" => write!(line, "{value:17}"),
            name => write!(line, "{name}={value}"),
        }
    });
    tracing_subscriber::fmt().fmt_fields(fields.delimited(" ")).event_format(LogLine(stopwatch)).init();
    stopwatch
}

/// ` 0.61 s  WARN     circuit.opened    circuit_key=http://…`
struct LogLine(Stopwatch);

impl<S, N> FormatEvent<S, N> for LogLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = String::new();
        context.format_fields(Writer::new(&mut fields), event)?;
        let level = event.metadata().level();
        writeln!(line, "{}  {}", self.0, paint(DIM, &format!("{level:7}  {fields}")))
    }
}

/// Prints as the time since the timeline began.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl fmt::Display for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:5.2} s", self.0.elapsed().as_secs_f64())
    }
}

/// How a terminal is told to print.
pub(crate) type Colour = &'static str;

pub(crate) const BOLD: Colour = "1";
pub(crate) const DIM: Colour = "2";
pub(crate) const RED: Colour = "31";
pub(crate) const GREEN: Colour = "32";
pub(crate) const YELLOW: Colour = "33";

/// Colours `text` for a terminal; for nothing else, and not where `NO_COLOR` is set.
pub(crate) fn paint(colour: Colour, text: &str) -> String {
    static WANTED: LazyLock<bool> =
        LazyLock::new(|| stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    if *WANTED { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}
