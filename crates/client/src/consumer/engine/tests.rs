mod fetching;
mod groups;
mod kafka;
mod positions;
mod random;
mod truncation;
