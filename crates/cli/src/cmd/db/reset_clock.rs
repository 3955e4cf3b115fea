//! `lsmx db PATH reset-clock`.

use lsmx::Db;

use crate::args::DbArgs;
use crate::failure::Failure;
use crate::output;

/// Sets the database clock to the clock of this host and prints it.
pub(super) fn run(arguments: &DbArgs) -> Result<(), Failure> {
    super::whole_database(arguments, "reset-clock")?;
    let options = super::options().create_if_missing(false).reset_clock(true);
    let db = Db::open(&arguments.path, options)?;
    let seconds = db.env().database_time_us() / 1_000_000;
    db.close(None)?;
    output::stdout(format!("the database clock is at {seconds} s since 1970\n").as_bytes())
}
