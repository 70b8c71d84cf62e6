mod consumer_protocol;
mod cooperative;
mod fetching;
mod groups;
mod kafka;
mod listening;
mod positions;
mod random;
