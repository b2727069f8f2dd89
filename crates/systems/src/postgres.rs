//! Databases of PostgreSQL.

use crate::table::Offers;

pub(crate) const OFFERS: Offers = Offers::NONE;
