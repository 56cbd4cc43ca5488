//! The command line: parse, trace, run, report the error, exit with its code.

use std::process::ExitCode;

use cdcprobe::cli;

fn main() -> ExitCode {
    cli::main()
}
