mod bad;
mod fetching;
mod groups;
mod kafka;
mod leaders;
mod positions;
mod random;
mod truncation;
