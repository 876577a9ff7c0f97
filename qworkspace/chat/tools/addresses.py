"""Which network addresses are public, whatever form they come in."""

from __future__ import annotations

import ipaddress

IPv4 = ipaddress.IPv4Address
IPv6 = ipaddress.IPv6Address

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address in the last 32 bits
# reachable from inside of a cloud only although its number is a public one: Azure's metadata and DNS
_INSIDE = frozenset({ipaddress.ip_address("168.63.129.16")})


def is_public(text: str) -> bool:
    """Whether the address (a scope after `%` is ignored) is one of the open Internet, with all that it contains."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(_is_public(each) for each in _contained(address))


def _contained(address: IPv4 | IPv6) -> list[IPv4 | IPv6]:
    """The IPv4 addresses that an IPv6 address stands for, else the address itself."""
    if isinstance(address, IPv4):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _TRANSLATED:
        return [IPv4(int(address) & 0xFFFF_FFFF)]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    return [address, *(address.teredo or ())]


def _is_public(address: IPv4 | IPv6) -> bool:
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    return address.is_global and not special and address not in _INSIDE
