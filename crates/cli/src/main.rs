//! The command-line program `lsmx`.
//!
//! Exit codes: 0 success, 1 the run failed, 2 invalid arguments or an invalid spec file, 3 a repair lost data or would
//! lose data, 4 an entry of a searched key remains or a file was not searched. A command prints an error as one line on
//! standard error. The causes of the error follow after colons.

mod args;
mod cmd;
mod failure;
mod interrupt;
mod output;

use std::process::ExitCode;

use crate::args::Command;

fn main() -> ExitCode {
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let result = args::parse(&words).and_then(|arguments| match arguments.command {
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
            interrupt::wait_if_interrupted();
            failure.report()
        }
    }
}
