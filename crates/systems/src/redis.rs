//! Redis and Valkey.

use crate::table::Offers;

pub(crate) const OFFERS: Offers = Offers::NONE;
