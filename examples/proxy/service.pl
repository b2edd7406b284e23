#!/usr/bin/perl
# A payment service that ignores idempotency keys: the service charges a card for each request. It needs only perl.
#
#	service.pl PORT LEDGER [remember]
#
# Each charge is a line of the file LEDGER: the operation, the user, the amount. With "remember", the service looks for the
# operation of the request (the field Idempotency-Operation, which the proxy sets) in LEDGER, and does not charge an operation
# twice. At the start, the service prints the port on which it listens.
use strict;
use warnings;
use IO::Socket::INET;

my ($port, $ledger, $remember) = @ARGV;
$| = 1;
$SIG{PIPE} = 'IGNORE';    # ignored, because a client may have left

my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 128, ReuseAddr => 1)
	or die "service.pl: cannot listen: $@\n";
print $listener->sockport, "\n";

while (my $client = $listener->accept) {
	my ($header, $body) = receive($client);
	$client->print(answer($header, $body)) if $header;
	close $client;
}

# receive reads a request, and returns the header fields by their lower-case names, and the body.
sub receive {
	my ($client) = @_;
	local $/ = "\r\n";
	defined(my $line = <$client>) or return;
	my %header;
	while (defined($line = <$client>) && $line ne "\r\n") {
		$header{ lc $1 } = $2 if $line =~ /^([^:]+):\s*(.*)\r\n/;
	}
	read $client, my $body, $header{'content-length'} // 0;
	return \%header, $body;
}

# answer charges a card, and returns the response.
sub answer {
	my ($header, $body) = @_;
	my ($amount) = $body =~ /"amount":(\d+)/ or return respond('400 Bad Request', '', '{"error":"no amount"}');
	my $operation = $header->{'idempotency-operation'} // 'none';
	my $id = $remember && $operation ne 'none' && charge_of($operation);
	$id ||= charge($operation, $header->{'x-user'}, $amount);
	return respond('201 Created', "Location: /payments/$id\r\n", qq({"id":"$id","status":"charged"}));
}

sub charge {
	my ($operation, $user, $amount) = @_;
	print "charging\n";
	select undef, undef, undef, 0.3;    # card networks are slow
	open my $file, '>>', $ledger or die "service.pl: $ledger: $!\n";
	print $file "$operation $user $amount\n";
	close $file or die "service.pl: $ledger: $!\n";
	return int rand 1e9;
}

# charge_of returns an ID for the charge of an operation in the ledger, or nothing if the ledger lacks the operation.
sub charge_of {
	my ($operation) = @_;
	open my $file, '<', $ledger or return;
	while (my $line = <$file>) {
		return $. if $line =~ /^\Q$operation\E /;
	}
	return;
}

sub respond {
	my ($status, $fields, $body) = @_;
	return "HTTP/1.1 $status\r\nContent-Type: application/json\r\n$fields"
		. 'Content-Length: ' . length($body) . "\r\nConnection: close\r\n\r\n$body";
}
