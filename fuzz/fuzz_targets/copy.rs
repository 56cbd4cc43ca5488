#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cdcprobe_fuzz::copy(data));
