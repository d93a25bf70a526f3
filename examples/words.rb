# Counts the words of its input.   belljar run examples/words.rb --stdin README.md
text = $stdin.tty? ? "" : $stdin.read.to_s
text = "the cat and the dog and the bird" if text.strip.empty?

counts = text.downcase.scan(/[[:alpha:]]+/).tally
counts.sort_by { |word, count| [-count, word] }.first(5).each do |word, count|
  puts format("%-12s %d", word, count)
end
puts "#{counts.size} different words, #{counts.values.sum} in all"
