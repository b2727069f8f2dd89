-- How often relays were rewound. No row counts as zeroes.
SELECT openings, republications FROM hapax_relay WHERE id = 1
