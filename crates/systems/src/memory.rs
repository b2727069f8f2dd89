//! The memory of the process.

use crate::table::Offers;

pub(crate) const OFFERS: Offers = Offers::NONE;
