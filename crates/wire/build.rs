//! Turns `messages/*.msg` into structs and codecs, `$OUT_DIR/messages.rs`.

#[path = "build/generate.rs"]
mod generate;
#[path = "build/parse.rs"]
mod parse;

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    // The first of our crates to be built: what others would say there explains nothing.
    if env::var_os("CARGO_CFG_WINDOWS").is_some() {
        return Err(
            "headrace does not run on Windows: install it in WSL 2, where there is a wheel for Linux".into(),
        );
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    println!("cargo::rerun-if-changed=messages");
    println!("cargo::rerun-if-changed=build");
    let files = parse::parse_dir(&root.join("messages"))?;
    fs::write(out.join("messages.rs"), generate::generate(&files)?)?;
    Ok(())
}
