//! The command line of lsmx: explore the design space, work on databases.
//!
//! Exit codes: 0 done, 1 the run failed, 2 the arguments or a spec file are wrong, 3 a repair lost
//! data or would lose some. Errors are one line on standard error, causes behind colons.

mod args;
mod cmd;
mod failure;
mod interrupt;
mod output;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let result = Arguments::try_parse_from(&words)
        .map_err(|error| args::failure(&error, &words))
        .and_then(|arguments| match arguments.command {
            Command::Explore(arguments) => cmd::explore::run(&arguments, &words),
            Command::Simulate(arguments) => cmd::simulate::run(&arguments, &words),
            Command::Advise(arguments) => cmd::advise::run(&arguments, &words),
            Command::Bench(arguments) => cmd::bench::run(&arguments, &words),
            Command::Iocost(arguments) => cmd::iocost::run(&arguments, &words),
            Command::Rmw(arguments) => cmd::rmw::run(&arguments, &words),
            Command::Compare(arguments) => cmd::compare::run(&arguments),
            Command::Stress(arguments) => cmd::stress::run(&arguments, &words),
            Command::Db(arguments) => cmd::db::run(&arguments),
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            interrupt::yield_to_the_end();
            failure.report()
        }
    }
}
